"""Examples of what OpenAI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.openai import responses_schemas, schemas
from formatters.openai.base import SYSTEM_FINGERPRINT

_CREATED = 1767225600
_MODEL = "my-model"
_TEXT = "Deep Learning is a kind of machine learning."
_USAGE = schemas.Usage(12, 9, 21)
_MODEL_INFO = schemas.ModelInfo(_MODEL, "model", _CREATED, "lmi-handlers", None)
_NAMES: Mapping[str, Any] = {"created": _CREATED, "model": _MODEL, "system_fingerprint": SYSTEM_FINGERPRINT}

ANSWERS: Mapping[Any, object] = {
    schemas.ChatCompletion: schemas.ChatCompletion(
        id="chatcmpl-5f0c",
        object="chat.completion",
        **_NAMES,
        choices=[schemas.ChatCompletionComplete(0, schemas.TextMessage("assistant", _TEXT), None, "stop")],
        usage=_USAGE,
    ),
    schemas.ChatCompletionChunk: schemas.ChatCompletionChunk(
        id="chatcmpl-5f0c",
        object="chat.completion.chunk",
        **_NAMES,
        choices=[schemas.ChatCompletionChoice(0, schemas.ChatCompletionDelta(content="Deep"), None, None)],
        usage=None,
    ),
    schemas.CompletionFinal: schemas.CompletionFinal(
        id="cmpl-5f0c",
        object="text_completion",
        **_NAMES,
        choices=[schemas.CompletionComplete(0, _TEXT, None, "stop")],
        usage=_USAGE,
    ),
    schemas.Chunk: schemas.Chunk(
        id="cmpl-5f0c",
        object="text_completion",
        **_NAMES,
        choices=[schemas.CompletionDelta(0, "Deep", None, None)],
        usage=None,
    ),
    schemas.EmbeddingList: schemas.EmbeddingList(
        "list",
        [schemas.Embedding("embedding", 0, [0.0125, -0.0371, 0.0518])],
        _MODEL,
        schemas.EmbeddingUsage(6, 6),
    ),
    schemas.ModelInfo: _MODEL_INFO,
    schemas.ModelList: schemas.ModelList("list", [_MODEL_INFO]),
    schemas.OpenAIError: schemas.OpenAIError(
        schemas.OpenAIErrorDetails("prompt: must not be empty", "invalid_request_error", "prompt", None)
    ),
    responses_schemas.StreamEvent: responses_schemas.OutputTextDelta(4, "msg_5f0c", 0, 0, "Deep", []),
    responses_schemas.ResponseObject: responses_schemas.ResponseObject(
        id="resp_5f0c",
        object="response",
        created_at=_CREATED,
        completed_at=_CREATED + 1,
        status="completed",
        error=None,
        incomplete_details=None,
        model=_MODEL,
        output=[
            responses_schemas.MessageItem(
                "msg_5f0c", "completed", "assistant", [responses_schemas.OutputText(_TEXT, [], [])]
            )
        ],
        usage=responses_schemas.ResponseUsage(
            12, responses_schemas.InputTokensDetails(0, 0), 9, responses_schemas.OutputTokensDetails(0), 21
        ),
        instructions=None,
        metadata={},
        parallel_tool_calls=True,
        reasoning=responses_schemas.ResponseReasoning(None, None),
        temperature=1.0,
        top_p=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        max_output_tokens=20,
        max_tool_calls=None,
        text={"format": {"type": "text"}},
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        truncation="disabled",
        user=None,
        safety_identifier=None,
        prompt_cache_key=None,
        background=False,
        previous_response_id=None,
        service_tier="default",
        store=False,
    ),
}
"""By type."""
