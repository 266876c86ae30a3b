"""Examples of what LMI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.lmi import responses
from lmi_handlers.core.outputs import FinishReason

_TEXT = "Deep Learning is a kind of machine learning."
_TOKEN = responses.LmiToken(18800, "Deep", -0.25)

ANSWERS: Mapping[Any, object] = {
    responses.LmiResponse: responses.LmiResponse(_TEXT),
    responses.LmiBestOfResponse: responses.LmiBestOfResponse(
        "Deep",
        responses.LmiBestOfDetails(
            inputs="What is Deep Learning?",
            finish_reason=FinishReason.LENGTH,
            generated_tokens=1,
            tokens=[_TOKEN],
            best_of_sequences=[
                responses.LmiSequence(
                    finish_reason=FinishReason.LENGTH,
                    generated_tokens=1,
                    tokens=[responses.LmiToken(739, "It", -1.5)],
                    generated_text="It",
                )
            ],
        ),
    ),
    responses.LmiRecord: responses.LmiRecord(_TOKEN),
    responses.LmiError: responses.LmiError("inputs must not be empty", 400),
    responses.DynamicBatchText: responses.DynamicBatchText(_TEXT),
    responses.DynamicBatchOutputs: responses.DynamicBatchOutputs(["Deep"]),
    responses.DynamicBatchError: responses.DynamicBatchError(400, "Bad Request", "inputs must not be empty"),
    list[float]: [0.9182],
    list[list[float]]: [[0.0125, -0.0371, 0.0518]],
}
"""By type."""
