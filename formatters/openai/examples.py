"""Examples of what OpenAI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.openai import response_objects, responses
from formatters.openai.base import SYSTEM_FINGERPRINT

_CREATED = 1767225600
_MODEL = "my-model"
_TEXT = "Deep Learning is a kind of machine learning."
_USAGE = responses.Usage(12, 9, 21)
_MODEL_INFO = responses.ModelInfo(_MODEL, "model", _CREATED, "lmi-handlers", None)
_NAMES: Mapping[str, Any] = {"created": _CREATED, "model": _MODEL, "system_fingerprint": SYSTEM_FINGERPRINT}

ANSWERS: Mapping[Any, object] = {
    responses.ChatCompletion: responses.ChatCompletion(
        id="chatcmpl-5f0c",
        object="chat.completion",
        **_NAMES,
        choices=[responses.ChatCompletionComplete(0, responses.TextMessage("assistant", _TEXT), None, "stop")],
        usage=_USAGE,
    ),
    responses.ChatCompletionChunk: responses.ChatCompletionChunk(
        id="chatcmpl-5f0c",
        object="chat.completion.chunk",
        **_NAMES,
        choices=[responses.ChatCompletionChoice(0, responses.ChatCompletionDelta(content="Deep"), None, None)],
        usage=None,
    ),
    responses.CompletionFinal: responses.CompletionFinal(
        id="cmpl-5f0c",
        object="text_completion",
        **_NAMES,
        choices=[responses.CompletionComplete(0, _TEXT, None, "stop")],
        usage=_USAGE,
    ),
    responses.Chunk: responses.Chunk(
        id="cmpl-5f0c",
        object="text_completion",
        **_NAMES,
        choices=[responses.CompletionDelta(0, "Deep", None, None)],
        usage=None,
    ),
    responses.EmbeddingList: responses.EmbeddingList(
        "list",
        [responses.Embedding("embedding", 0, [0.0125, -0.0371, 0.0518])],
        _MODEL,
        responses.EmbeddingUsage(6, 6),
    ),
    responses.ModelInfo: _MODEL_INFO,
    responses.ModelList: responses.ModelList("list", [_MODEL_INFO]),
    responses.OpenAIError: responses.OpenAIError(
        responses.OpenAIErrorDetails("prompt: must not be empty", "invalid_request_error", "prompt", None)
    ),
    response_objects.StreamEvent: response_objects.OutputTextDelta(4, "msg_5f0c", 0, 0, "Deep", []),
    response_objects.ResponseObject: response_objects.ResponseObject(
        id="resp_5f0c",
        object="response",
        created_at=_CREATED,
        completed_at=_CREATED + 1,
        status="completed",
        error=None,
        incomplete_details=None,
        model=_MODEL,
        output=[
            response_objects.MessageItem(
                "msg_5f0c", "completed", "assistant", [response_objects.OutputText(_TEXT, [], [])]
            )
        ],
        usage=response_objects.ResponseUsage(
            12, response_objects.InputTokensDetails(0, 0), 9, response_objects.OutputTokensDetails(0), 21
        ),
        instructions=None,
        metadata={},
        parallel_tool_calls=True,
        reasoning=response_objects.ResponseReasoning(None, None),
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
