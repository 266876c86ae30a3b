"""Examples of what llama.cpp's route answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.llama_cpp import schemas

ANSWERS: Mapping[Any, object] = {
    schemas.LlamaCppCompletion: schemas.LlamaCppCompletion(
        index=0,
        content="a + b",
        tokens=[],
        id_slot=-1,
        stop=True,
        model="my-model",
        tokens_predicted=4,
        tokens_evaluated=16,
        generation_settings=schemas.LlamaCppSettings(
            4294967295, 0.8, 40, 0.95, 0.05, 1.0, 1.0, 0.0, 0.0, [], 64, 64, False, False, 0
        ),
        prompt="<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n<|fim_middle|>",
        has_new_line=False,
        truncated=False,
        stop_type="eos",
        stopping_word="",
        tokens_cached=0,
        timings=schemas.LlamaCppTimings(0, 16, 32.0, 2.0, 500.0, 4, 80.0, 20.0, 50.0),
    ),
    schemas.LlamaCppChunk: schemas.LlamaCppChunk(0, "a +", [64, 488], False, -1, 2, 16),
    schemas.LlamaCppError: schemas.LlamaCppError(
        schemas.LlamaCppErrorDetails(400, "input_suffix: must not be empty", "invalid_request_error")
    ),
}
"""By type."""
