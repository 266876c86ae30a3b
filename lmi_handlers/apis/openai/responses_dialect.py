"""OpenAI's dialect of responses: a chat in another form.

Nothing is stored, so each request has its whole conversation. Source: OpenAI's API reference, "Responses".
"""

from __future__ import annotations

from functools import partial

import msgspec

from formatters.openai.chat import ChatOptions
from formatters.openai.responses import ResponseJsonFormatter, ResponseSseFormatter
from formatters.openai.responses_schemas import ResponseObject, ResponseReasoning
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect, check_length, decode_body
from lmi_handlers.apis.openai.responses_body import (
    FunctionTool,
    PlainText,
    ReasoningOptions,
    ResponseBody,
    ResponseText,
    client_name,
)
from lmi_handlers.core.errors import UnsupportedFeature, aliased
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import Parsed

REFUSED = {
    "previous_response_id": "is not supported, because responses are not stored: send the conversation as `input`",
    "conversation": "is not supported, because conversations are not stored: send the conversation as `input`",
    "prompt": "is not supported, because prompts are not stored: send `instructions` and `input`",
}
"""Fields that would change the meaning of a request, and what to do instead."""


class ResponseDialect(ChatDialect):
    """Dialect of `/v1/responses`."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = decode_body(payload, ResponseBody)
        for name, reason in REFUSED.items():
            if name in ignored:
                raise UnsupportedFeature(reason, field=name)
        if body.background:
            raise UnsupportedFeature("is not supported, because responses are not stored", field="background")
        if not isinstance(body.input, str):
            self._budget.check_items("input", body.input)
        tools = body.function_tools()
        chat, places = body.chat(tools)

        def alias(field: str) -> str:
            return client_name(chat.alias(field))

        with aliased(client_name):
            request, options = self.translated(payload, chat, ignored, places)
        request = self._truncated(request, body)
        kind = ResponseSseFormatter if request.stream else ResponseJsonFormatter
        formatter = partial(kind, options=options, response=_response(request, body, tools, options))
        return Parsed(request, formatter, alias, partial(check_length, "input"), "input")

    def _truncated(self, request: GenerationRequest, body: ResponseBody) -> GenerationRequest:
        """Let the prompt's end fit next to the answer if the request asks for it. One with images or sounds cannot be cut."""
        if body.truncation != "auto" or request.prompts[0].has_media:
            return request
        capabilities = self._facts().capabilities
        room = min(capabilities.max_input_tokens, capabilities.max_model_len - (body.max_output_tokens or 1))
        return msgspec.structs.replace(request, truncate=max(1, room))


def _response(
    request: GenerationRequest, body: ResponseBody, tools: list[FunctionTool], options: ChatOptions
) -> ResponseObject:
    """Return the response before it has any output."""
    text, reasoning = body.text or ResponseText(), body.reasoning or ReasoningOptions()
    return ResponseObject(
        id=f"resp_{request.request_id}",
        object="response",
        created_at=options.created,
        completed_at=None,
        status="in_progress",
        error=None,
        incomplete_details=None,
        model=options.model,
        output=[],
        usage=None,
        instructions=body.instructions,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=ResponseReasoning(reasoning.effort, reasoning.summary),
        temperature=request.sampling_params.temperature,
        top_p=request.sampling_params.top_p if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        text=msgspec.structs.replace(text, format=text.format or PlainText()),
        tool_choice=body.tool_choice or "auto",
        tools=list(tools),
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        background=False,
        previous_response_id=None,
        service_tier="default",
        store=False,
    )
