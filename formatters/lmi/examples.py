"""Examples of what LMI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.lmi import schemas
from lmi_handlers.core.outputs import FinishReason

_TEXT = "Deep Learning is a kind of machine learning."
_TOKEN = schemas.LmiToken(18800, "Deep", -0.25)

ANSWERS: Mapping[Any, object] = {
    schemas.LmiResponse: schemas.LmiResponse(_TEXT),
    schemas.LmiBestOfResponse: schemas.LmiBestOfResponse(
        "Deep",
        schemas.LmiBestOfDetails(
            inputs="What is Deep Learning?",
            finish_reason=FinishReason.LENGTH,
            generated_tokens=1,
            tokens=[_TOKEN],
            best_of_sequences=[
                schemas.LmiSequence(
                    finish_reason=FinishReason.LENGTH,
                    generated_tokens=1,
                    tokens=[schemas.LmiToken(739, "It", -1.5)],
                    generated_text="It",
                )
            ],
        ),
    ),
    schemas.LmiRecord: schemas.LmiRecord(_TOKEN),
    schemas.LmiError: schemas.LmiError("inputs must not be empty", 400),
    schemas.DynamicBatchText: schemas.DynamicBatchText(_TEXT),
    schemas.DynamicBatchOutputs: schemas.DynamicBatchOutputs(["Deep"]),
    schemas.DynamicBatchError: schemas.DynamicBatchError(400, "Bad Request", "inputs must not be empty"),
    list[float]: [0.9182],
    list[list[float]]: [[0.0125, -0.0371, 0.0518]],
}
"""By type."""
