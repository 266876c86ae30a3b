"""Examples of what TGI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.tgi import schemas
from lmi_handlers import __version__
from lmi_handlers.text.spans import TokenSpan

_SPANS = [TokenSpan(1841, "What", 0, 4), TokenSpan(338, " is", 4, 7)]

ANSWERS: Mapping[Any, object] = {
    schemas.GenerateResponse: schemas.GenerateResponse("Deep Learning is a kind of machine learning."),
    schemas.StreamResponse: schemas.StreamResponse(
        index=1, token=schemas.Token(18800, "Deep", -0.25, special=False), generated_text=None, details=None
    ),
    schemas.ErrorResponse: schemas.ErrorResponse("`inputs` must not be empty", "validation"),
    schemas.ChatTokenizeResponse: schemas.ChatTokenizeResponse(_SPANS, "What is"),
    list[TokenSpan]: _SPANS,
    schemas.Info: schemas.Info(
        model_id="my-model",
        model_sha=None,
        model_pipeline_tag="text-generation",
        max_concurrent_requests=1000,
        max_best_of=2,
        max_stop_sequences=4,
        max_input_tokens=4095,
        max_total_tokens=4096,
        validation_workers=1,
        max_client_batch_size=4,
        router="text-generation-router",
        version=__version__,
        sha=None,
        docker_label=None,
        model_dtype="bfloat16",
        model_device_type="cuda",
    ),
}
"""By type."""
