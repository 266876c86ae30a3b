r"""OpenAI's chat completions.

    document   {"id":"chatcmpl-1","object":"chat.completion",...,"choices":[{"index":0,"message":{...},...}],...}
    stream     data: {"id":"chatcmpl-1","object":"chat.completion.chunk",...,"choices":[{"index":0,"delta":{...},...}],...}\n\n
    lines      the objects of the stream, one per line (LMI's chat stream)

The first chunk of a choice has the role and no text. The last chunk has the finish reason and no text. Some clients
drop text that comes with either one. Both have "" as content, as in vLLM and TGI, because clients add up the contents.
Reasoning is in `reasoning_content`, the name that DeepSeek, SGLang and older versions of vLLM use, and again in
`reasoning`, vLLM's newer one. Both are omitted if there is no reasoning. If the request has `functions`, the older
form of `tools`, a call is in `function_call`. A message has at most one there, and with `parallel_tool_calls` false, so
any others that the model writes are left out.

Source: OpenAI's API reference.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import Formatter, encode, event, line
from formatters.openai import schemas
from formatters.openai.base import DONE, FINISH_REASONS, SYSTEM_FINGERPRINT, finite, token_name, usage
from formatters.openai.errors import error_document
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, PlainParser, ToolCallDelta
from lmi_handlers.text.output_parsers.reasoning import ReasoningFormat, with_reasoning

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
"""Mistral's chat templates require tool call ids of exactly nine letters and digits. Other templates accept any id."""

_NO_TOKENS: list[Token] = []


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the answer.

    `created` is a Unix time in seconds. `parser` creates the parser that finds tool calls in one choice. `reasoning`
    says how the model marks its reasoning; if it is None, reasoning stays in the content. If `include_reasoning` is
    false, the reasoning is left out of the answer. `token_ids` adds the ids of the prompt and the new tokens.
    `tokens_as_ids` writes tokens as vLLM's `return_tokens_as_token_ids` does. If `one_call` is true, calls after the
    first are left out. If `one_function` is true, that one is in `function_call`.
    """

    model: str
    created: int
    parser: Callable[[], MessageParser] = PlainParser
    reasoning: ReasoningFormat | None = None
    include_reasoning: bool = True
    logprobs: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    one_call: bool = False
    one_function: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class ChoiceState:
    """One choice of the answer. `new_tokens` are the tokens whose logprobs and ids have not been sent yet."""

    def __init__(self, parser: MessageParser, *, one_call: bool, one_function: bool) -> None:
        self._parser = parser
        self._one_call = one_call
        self._one_function = one_function
        self.begun = False
        self.calls: list[str] = []
        self.num_tokens = 0
        self.reasoning_tokens = 0  # up to the end of the reasoning
        self.new_tokens: list[Token] = []
        self.finish_reason: FinishReason | None = None

    def feed(self, delta: TextDelta) -> MessageDelta:
        """Take the new text and return what it adds to the message."""
        self.num_tokens += len(delta.tokens)
        self.new_tokens += delta.tokens
        message = self._parser.feed(delta.text)
        self.finish_reason = delta.finish_reason
        if delta.finish_reason is not None and not delta.continues:
            message += self._parser.finish()
        if message.reasoning:
            self.reasoning_tokens = self.num_tokens
        return self._shown(message)

    def resume(self, delta: TextDelta) -> tuple[ToolCallDelta, ...]:
        """Take the text so far, which earlier answers have shown, and return the calls in it."""
        calls = self._shown(self._parser.feed(delta.text)).tool_calls
        for call in calls:
            self.call_id(call.index)
        return calls

    def _shown(self, message: MessageDelta) -> MessageDelta:
        """Return the delta without the calls that are left out."""
        if not self._one_call or not message.tool_calls:
            return message
        return msgspec.structs.replace(message, tool_calls=tuple(call for call in message.tool_calls if not call.index))

    def call_id(self, index: int) -> str:
        """Return the id of call number `index`, which is created when it is first asked for."""
        while len(self.calls) <= index:
            self.calls.append("".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH)))
        return self.calls[index]

    @property
    def reason(self) -> Any:
        """OpenAI's finish reason. It tells of calls if there are any and the model ended by itself."""
        if self.calls and self.finish_reason in (FinishReason.EOS_TOKEN, FinishReason.STOP_SEQUENCE):
            return "function_call" if self._one_function else "tool_calls"
        return FINISH_REASONS[self.finish_reason]


class ChatFormatter(Formatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: ChatOptions
    ) -> None:
        super().__init__(request, prompts)
        self.options = options
        self.choices = [
            ChoiceState(self._parser(), one_call=options.one_call, one_function=options.one_function)
            for _ in range(request.sampling_params.n)
        ]
        self.id = f"chatcmpl-{request.request_id}"

    def _parser(self) -> MessageParser:
        options, parser = self.options, self.options.parser()
        if options.reasoning is None:
            return parser
        return with_reasoning(options.reasoning, self.prompts[0].text, parser)

    def resume(self, delta: TextDelta) -> None:
        super().resume(delta)
        self.resume_calls(delta.index, self.choices[delta.index].resume(delta))

    def resume_calls(self, index: int, calls: tuple[ToolCallDelta, ...]) -> None:
        """Take the calls that earlier answers have shown, in whole or in part. A stream goes on with their arguments."""

    def usage(self, cached_tokens: int | None = None) -> schemas.Usage:
        """Return the tokens used so far. As in vLLM, only the final usage tells `cached_tokens`."""
        generated = sum(choice.num_tokens for choice in self.choices)
        thought = sum(choice.reasoning_tokens for choice in self.choices)
        return usage(
            sum(self.prompt_tokens), generated, cached_tokens, None if self.options.reasoning is None else thought
        )

    def logprobs(self, tokens: list[Token]) -> schemas.ChatCompletionLogprobs | None:
        """Return the tokens' logprobs, if the request asked for them."""
        if not self.options.logprobs or not tokens:
            return None
        return schemas.ChatCompletionLogprobs([_logprob(token, self.options.tokens_as_ids) for token in tokens])

    def ids(self, tokens: list[Token]) -> list[int] | UnsetType:
        """Return the ids of new tokens, if there are any and the request asked for them."""
        return [token.id for token in tokens] if self.options.token_ids and tokens else UNSET

    @property
    def prompt_ids(self) -> list[int] | UnsetType:
        """The ids of the prompt, if the request asked for them."""
        return [*self.prompts[0].token_ids] if self.options.token_ids else UNSET


class ChatJsonFormatter(ChatFormatter):
    """One document at the end."""

    content_type = "application/json"
    streams = False

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: ChatOptions
    ) -> None:
        super().__init__(request, prompts, options=options)
        self._messages = [_Message() for _ in self.choices]

    def resume_calls(self, index: int, calls: tuple[ToolCallDelta, ...]) -> None:
        """Show them again: clients can join texts, but not parts of calls."""
        self._messages[index].feed(MessageDelta(tool_calls=calls))

    def feed(self, delta: TextDelta) -> bytes:
        self._messages[delta.index].feed(self.choices[delta.index].feed(delta))
        return b""

    def finish(self) -> bytes:
        options, choices = self.options, []
        for index, (choice, message) in enumerate(zip(self.choices, self._messages, strict=True)):
            whole = message.complete(choice, options)
            logprobs = self.logprobs(choice.new_tokens)
            ids = self.ids(choice.new_tokens)
            choices.append(schemas.ChatCompletionComplete(index, whole, logprobs, choice.reason, ids))
        document = schemas.ChatCompletion(
            self.id,
            "chat.completion",
            options.created,
            options.model,
            SYSTEM_FINGERPRINT,
            choices,
            self.usage(self.cached_tokens),
            self.prompt_ids,
            self.continued_by,
        )
        return encode(document)


class _Message:
    """The part of a message that has been generated so far."""

    def __init__(self) -> None:
        self._content = ""
        self._reasoning = ""
        self._functions: list[schemas.FunctionCall] = []

    def feed(self, delta: MessageDelta) -> None:
        self._content += delta.content
        self._reasoning += delta.reasoning
        for call in delta.tool_calls:
            while len(self._functions) <= call.index:
                self._functions.append(schemas.FunctionCall("", ""))
            function = self._functions[call.index]
            function.name += call.name or ""
            function.arguments += call.arguments

    def complete(
        self, choice: ChoiceState, options: ChatOptions
    ) -> schemas.TextMessage | schemas.ToolCallMessage | schemas.FunctionCallMessage:
        content = self._content if self._content or not (self._functions or self._reasoning) else None
        reasoning = self._reasoning if self._reasoning and options.include_reasoning else UNSET
        if not self._functions:
            return schemas.TextMessage("assistant", content, reasoning, reasoning)
        calls = [
            schemas.ToolCall(choice.call_id(index), "function", function)
            for index, function in enumerate(self._functions)
        ]
        if options.one_function:
            return schemas.FunctionCallMessage(
                role="assistant",
                content=content,
                reasoning_content=reasoning,
                reasoning=reasoning,
                function_call=self._functions[0],
            )
        return schemas.ToolCallMessage(
            role="assistant", content=content, reasoning_content=reasoning, reasoning=reasoning, tool_calls=calls
        )


class ChatSseFormatter(ChatFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    content_type = "text/event-stream"
    streams = True
    frame = staticmethod(event)
    end = DONE

    def feed(self, delta: TextDelta) -> bytes:
        index, choice = delta.index, self.choices[delta.index]
        records = []
        if not choice.begun:
            choice.begun = True
            first = schemas.ChatCompletionDelta(role="assistant", content="")
            records.append(self._chunk(index, first, prompt_ids=self.prompt_ids))
        message = choice.feed(delta)
        parts = []
        if message.reasoning and self.options.include_reasoning:
            thoughts = message.reasoning
            parts.append(schemas.ChatCompletionDelta(reasoning_content=thoughts, reasoning=thoughts))
        if message.content:
            parts.append(schemas.ChatCompletionDelta(content=message.content))
        parts += self._call_parts(choice, message.tool_calls)
        if not parts and (self.options.logprobs or self.options.token_ids) and choice.new_tokens:
            parts.append(schemas.ChatCompletionDelta(content=""))
        for part in parts:  # the first has the logprobs and ids of the new tokens
            records.append(self._chunk(index, part, choice.new_tokens))
            choice.new_tokens = []
        if delta.finish_reason is not None:
            records.append(self._chunk(index, schemas.ChatCompletionDelta(content=""), reason=choice.reason))
        return b"".join(records)

    def _call_parts(self, choice: ChoiceState, calls: tuple[ToolCallDelta, ...]) -> list[schemas.ChatCompletionDelta]:
        deltas = [_call_delta(choice, call) for call in calls]
        if self.options.one_function:
            return [schemas.ChatCompletionDelta(function_call=delta.function) for delta in deltas]
        return [schemas.ChatCompletionDelta(tool_calls=[delta]) for delta in deltas]

    def finish(self) -> bytes:
        if not self.options.include_usage:
            return self.end
        return self.frame(encode(self.chunk([], self.usage(self.cached_tokens)))) + self.end

    def error(self, error: LMIError) -> bytes:
        return self.frame(error_document(error)) + self.end

    def chunk(
        self,
        choices: list[schemas.ChatCompletionChoice],
        usage: schemas.Usage | None,
        prompt_ids: list[int] | UnsetType = UNSET,
    ) -> msgspec.Struct:
        options = self.options
        return schemas.ChatCompletionChunk(
            self.id,
            "chat.completion.chunk",
            options.created,
            options.model,
            SYSTEM_FINGERPRINT,
            choices,
            usage,
            prompt_ids,
        )

    def _chunk(
        self,
        index: int,
        delta: schemas.ChatCompletionDelta,
        tokens: list[Token] = _NO_TOKENS,
        *,
        reason: Any = None,
        prompt_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        cut_by, continued_by = (UNSET, UNSET) if reason is None else (self.cut_by, self.continued_by)
        choice = schemas.ChatCompletionChoice(
            index, delta, self.logprobs(tokens), reason, cut_by, self.ids(tokens), continued_by
        )
        usage = self.usage() if self.options.continuous_usage else None
        return self.frame(encode(self.chunk([choice], usage, prompt_ids)))


class ChatJsonLinesFormatter(ChatSseFormatter):
    """The same objects, one per line and without `[DONE]`. LMI streams chats this way to SageMaker clients."""

    content_type = "application/jsonlines"
    frame = staticmethod(line)
    end = b""


def _call_delta(choice: ChoiceState, call: ToolCallDelta) -> schemas.DeltaToolCall:
    if call.name is None:
        return schemas.DeltaToolCall(index=call.index, function=schemas.Function(arguments=call.arguments))
    function = schemas.Function(name=call.name, arguments=call.arguments)
    return schemas.DeltaToolCall(index=call.index, id=choice.call_id(call.index), type="function", function=function)


def _logprob(token: Token, as_id: bool) -> schemas.ChatCompletionLogprob:
    others = [
        schemas.ChatCompletionTopLogprob(text, finite(other.logprob), data)
        for other in token.top
        for text, data in [_shown(other, as_id)]
    ]
    text, data = _shown(token, as_id)
    return schemas.ChatCompletionLogprob(text, finite(token.logprob), data, others)


def _shown(token: Token, as_id: bool) -> tuple[str, list[int]]:
    """Return the token's text and its bytes.

    If a stop string cut all of the text, it is the original text; half a character is "".
    """
    if as_id:
        text = token_name(token.id)
        return text, [*text.encode()]
    return token.text or token.data.decode(errors="ignore"), [*token.data]
