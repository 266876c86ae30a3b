r"""OpenAI's chat completions.

    document   {"id":"chatcmpl-1","object":"chat.completion",...,"choices":[{"index":0,"message":{...},...}],...}
    stream     data: {"id":"chatcmpl-1","object":"chat.completion.chunk",...,"choices":[{"index":0,"delta":{...},...}],...}\n\n
    lines      the objects of the stream, one per line (LMI's chat stream)

The first chunk of a choice has the role and no text. The last chunk has the finish reason and no text. Some clients
drop text that comes with either one. Reasoning is in `reasoning_content`, the field that DeepSeek uses and vLLM used to
use. The field is omitted if there is no reasoning.

Source: OpenAI's API reference.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from json.encoder import encode_basestring as quote

import msgspec

from formatters.base import Formatter, json_array
from formatters.openai.base import DONE, finish_reason, head, number, usage
from formatters.openai.errors import error_document
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, PlainParser, ToolCallDelta
from lmi_handlers.text.output_parsers.reasoning import ReasoningFormat, ReasoningParser

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
"""Mistral's chat templates require tool call ids of exactly nine letters and digits. Other templates accept any id."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer contains.

    `created` is a Unix time in seconds. `parser` creates the parser that finds tool calls in one choice. `reasoning`
    says how the model marks its reasoning; if it is None, reasoning stays in the content. If `include_reasoning` is
    false, the reasoning is left out of the answer.
    """

    model: str
    created: int
    parser: Callable[[], MessageParser] = PlainParser
    reasoning: ReasoningFormat | None = None
    include_reasoning: bool = True
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Choice:
    """One choice of the answer. `new_tokens` are the tokens whose logprobs have not been sent yet."""

    def __init__(self, parser: MessageParser, *, shows_reasoning: bool = True) -> None:
        self._parser = parser
        self.shows_reasoning = shows_reasoning
        self.calls: list[str] = []
        self.num_tokens = 0
        self.new_tokens: list[Token] = []
        self.finish_reason: FinishReason | None = None

    def feed(self, delta: TextDelta) -> MessageDelta:
        """Take the new text and return what it adds to the message."""
        self.num_tokens += len(delta.tokens)
        self.new_tokens += delta.tokens
        message = self._parser.feed(delta.text)
        self.finish_reason = delta.finish_reason
        if delta.finish_reason is not None:
            message += self._parser.finish()
        return message

    def call_id(self, call: ToolCallDelta) -> str:
        """Return the id of a call. The first delta of a call creates a new id."""
        while len(self.calls) <= call.index:
            self.calls.append("".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH)))
        return self.calls[call.index]

    @property
    def reason(self) -> str:
        """The finish reason as JSON. It is "tool_calls" if there are tool calls and the model ended by itself."""
        if self.calls and self.finish_reason in (FinishReason.EOS_TOKEN, FinishReason.STOP_SEQUENCE):
            return '"tool_calls"'
        return finish_reason(self.finish_reason)


class ChatFormatter(Formatter):
    """Shared by the document and the stream."""

    kind = "chat.completion"

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: ChatOptions) -> None:
        super().__init__(request, prompt_tokens)
        self.options = options
        self.choices = [
            Choice(self._parser(), shows_reasoning=options.include_reasoning) for _ in range(request.sampling_params.n)
        ]
        self.head = head(f"chatcmpl-{request.request_id}", self.kind, options.created, options.model)

    def _parser(self) -> MessageParser:
        options, parser = self.options, self.options.parser()
        if options.reasoning is None:
            return parser
        return ReasoningParser(options.reasoning, self.request.prompts[0], parser)

    def usage(self) -> str:
        """Render the usage so far."""
        return usage(sum(self.prompt_tokens), sum(choice.num_tokens for choice in self.choices))

    def logprobs(self, tokens: list[Token]) -> str:
        """Render the tokens' logprobs, or null if the request did not ask for them."""
        if not self.options.logprobs or not tokens:
            return "null"
        return f'{{"content":{json_array(map(_token_logprob, tokens))}}}'


class ChatJsonFormatter(ChatFormatter):
    """One document at the end."""

    content_type = "application/json"
    streams = False

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: ChatOptions) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._messages = [_Message() for _ in self.choices]

    def feed(self, delta: TextDelta) -> bytes:
        """Store the delta."""
        self._messages[delta.index].feed(self.choices[delta.index].feed(delta))
        return b""

    def finish(self) -> bytes:
        """Return the document."""
        choices = json_array(
            f'{{"index":{index},"message":{message.render(choice)},"logprobs":{self.logprobs(choice.new_tokens)},'
            f'"finish_reason":{choice.reason}}}'
            for index, (choice, message) in enumerate(zip(self.choices, self._messages, strict=True))
        )
        return f'{self.head}{choices},"usage":{self.usage()}}}'.encode()


class _Message:
    """The part of a message that has been generated so far."""

    def __init__(self) -> None:
        self._content = ""
        self._reasoning = ""
        self._names: list[str] = []
        self._arguments: list[str] = []

    def feed(self, delta: MessageDelta) -> None:
        self._content += delta.content
        self._reasoning += delta.reasoning
        for call in delta.tool_calls:
            while len(self._names) <= call.index:
                self._names.append("")
                self._arguments.append("")
            self._names[call.index] += call.name or ""
            self._arguments[call.index] += call.arguments

    def render(self, choice: Choice) -> str:
        is_text = self._content or not (self._names or self._reasoning)
        head = f'{{"role":"assistant","content":{quote(self._content) if is_text else "null"}'
        if self._reasoning and choice.shows_reasoning:
            head += f',"reasoning_content":{quote(self._reasoning)}'
        if not self._names:
            return f"{head}}}"
        calls = json_array(
            f'{{"id":"{choice.call_id(ToolCallDelta(index))}","type":"function",'
            f'"function":{{"name":{quote(name)},"arguments":{quote(arguments)}}}}}'
            for index, (name, arguments) in enumerate(zip(self._names, self._arguments, strict=True))
        )
        return f'{head},"tool_calls":{calls}}}'


class ChatSseFormatter(ChatFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    content_type = "text/event-stream"
    streams = True
    kind = "chat.completion.chunk"

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: ChatOptions) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._begun = [False] * len(self.choices)

    def feed(self, delta: TextDelta) -> bytes:
        """Return chunks with what is new in the message."""
        index, choice = delta.index, self.choices[delta.index]
        records = []
        if not self._begun[index]:
            self._begun[index] = True
            records.append(self._chunk(index, '{"role":"assistant","content":""}'))
        message = choice.feed(delta)
        shown = message.reasoning if choice.shows_reasoning else ""
        gains = [f'{{"reasoning_content":{quote(shown)}}}'] if shown else []
        if message.content:
            gains.append(f'{{"content":{quote(message.content)}}}')
        gains += [f'{{"tool_calls":[{_call_delta(choice, call)}]}}' for call in message.tool_calls]
        if not gains and self.options.logprobs and choice.new_tokens:
            gains.append('{"content":""}')
        records += [self._chunk(index, gain, choice=choice) for gain in gains]
        if delta.finish_reason is not None:
            records.append(self._chunk(index, "{}", reason=choice.reason))
        return b"".join(records)

    def finish(self) -> bytes:
        """Return the usage, if requested, and the end of the stream."""
        last = b""
        if self.options.include_usage:
            last = self.record(f'{self.head}[],"usage":{self.usage()}}}'.encode())
        return last + self.end()

    def error(self, error: LMIError) -> bytes:
        """Return the error and the end of the stream."""
        return self.record(error_document(error)) + self.end()

    def record(self, data: bytes) -> bytes:
        """Frame one object as an event."""
        return b"data: " + data + b"\n\n"

    def head_of(self, reason: str) -> str:  # noqa: ARG002  used by subclasses
        """Return the start of a chunk with this finish reason."""
        return self.head

    def end(self) -> bytes:
        """Return the end-of-stream marker."""
        return DONE

    def _chunk(self, index: int, delta: str, *, choice: Choice | None = None, reason: str = "null") -> bytes:
        """Render a chunk. If `choice` is given, the chunk has the logprobs of its new tokens."""
        logprobs = "null"
        if choice is not None:
            logprobs = self.logprobs(choice.new_tokens)
            choice.new_tokens = []
        running = self.usage() if self.options.continuous_usage else "null"
        return self.record(
            f'{self.head_of(reason)}[{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}],'
            f'"usage":{running}}}'.encode()
        )


class ChatJsonLinesFormatter(ChatSseFormatter):
    """The same objects, one per line and without `[DONE]`. LMI streams chats this way to SageMaker clients."""

    content_type = "application/jsonlines"

    def record(self, data: bytes) -> bytes:
        """Frame one object as a line."""
        return data + b"\n"

    def end(self) -> bytes:
        """Return nothing: the stream ends when the connection closes."""
        return b""


def _call_delta(choice: Choice, call: ToolCallDelta) -> str:
    if call.name is None:
        return f'{{"index":{call.index},"function":{{"arguments":{quote(call.arguments)}}}}}'
    return (
        f'{{"index":{call.index},"id":"{choice.call_id(call)}","type":"function",'
        f'"function":{{"name":{quote(call.name)},"arguments":{quote(call.arguments)}}}}}'
    )


def _token_logprob(token: Token) -> str:
    return f'{{{_probability(token)},"top_logprobs":{json_array(f"{{{_probability(other)}}}" for other in token.top)}}}'


def _probability(token: Token) -> str:
    data = ",".join(map(str, token.data))
    # If a stop string cut all of the token's text, show the original text. Part of a character shows as "".
    text = token.text or token.data.decode(errors="ignore")
    return f'"token":{quote(text)},"logprob":{number(token.logprob)},"bytes":[{data}]'
