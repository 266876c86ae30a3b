"""OpenAI's dialects: chat completions, text completions and their errors.

Source: OpenAI's API reference. It takes precedence where TGI's routes of the same names differ. TGI's looser forms are
accepted too: a model called "tgi", a plain tool name as `tool_choice`, and its forms of `response_format`.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from formatters.base import Formatter
from formatters.openai.chat import ChatFormatter, ChatJsonFormatter, ChatOptions, ChatSseFormatter
from formatters.openai.completions import CompletionJsonFormatter, CompletionOptions, CompletionSseFormatter
from formatters.openai.errors import error_document
from formatters.openai.schemas import OpenAIError
from lmi_handlers.apis.base import Dialect, Payload, Reply, first_named
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.body import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionBody,
    CompletionBody,
    OpenAIBody,
    StreamOptions,
    num_prompts,
    split_prompts,
)
from lmi_handlers.apis.openai.tools import Tool, call_of, calls_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import (
    ClientDisconnected,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineNotReady,
    InvalidBody,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestTimeout,
    TurnConflict,
    UnsupportedFeature,
    UnsupportedMediaType,
    entry_of,
)
from lmi_handlers.core.request import ChatPrompt, GenerationRequest, Prompt, PromptContent
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving.parsed import FormatterFactory, ModelFacts, Parsed
from lmi_handlers.text.output_parsers.message import MessageParser, NamedCallParser, PlainParser
from lmi_handlers.text.output_parsers.reasoning import ReasoningFormat, choose_reasoning_format
from lmi_handlers.text.output_parsers.tool_calls import CallListParser, TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import choose_tool_format

STATUS: dict[type[LMIError], int] = {
    RequestTimeout: 408,
    PayloadTooLarge: 413,
    UnsupportedMediaType: 415,
    InvalidRequest: 400,
    ModelNotFound: 404,
    TurnConflict: 409,
    QueueFull: 429,
    ClientDisconnected: 499,  # only the log shows it
    EngineNotReady: 503,
    DeadlineExceeded: 504,
}
"""HTTP status by error class or nearest base class. Defaults to 500."""

NOBODYS_MODEL = (None, "", "tgi")
"""Values of `model` that mean the served model."""

TOOL_PROMPT = 'To use a function, answer with nothing but its call as JSON: {"name": "<function>", "arguments": {...}}.'
"""For models whose chat template does not support tools. A request's `tool_prompt` takes precedence."""

_PART_TYPE = re.compile(r"(messages\[\d+\]\.content\[\d+\])\.type")
_OTHER_PARTS = frozenset({"video_url", "input_video", "file"})
"""Types of parts that OpenAI or vLLM has, but no engine here."""

NO_INFILL = "is not supported by this model: its tokenizer has no tokens for filling in the middle"

Body = TypeVar("Body", bound=msgspec.Struct)
Kind = TypeVar("Kind", bound=Formatter)


def status_of(error: LMIError) -> int:
    """Return OpenAI's HTTP status for an error."""
    return entry_of(error, STATUS, 500)


class OpenAIDialect(Dialect):
    """Base of the chat and text completion dialects. `facts` returns facts about the model once it has loaded."""

    error_type: ClassVar[type] = OpenAIError

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget) -> None:
        self._facts = facts
        self._budget = budget

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest`, or `EngineNotReady` if no model has loaded yet."""

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":{"message":"..","type":"..","param":null,"code":null}}`."""
        return Reply(status_of(error), error_document(error))

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:  # noqa: ARG002  as in the base class
        """Return headers that keep proxies from buffering a stream."""
        return {"Cache-Control": "no-cache", "x-accel-buffering": "no"} if request.stream else {}

    def _decoded(self, payload: Payload, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return the body, which is within the budget, and the names of its ignored fields. Raises `InvalidRequest`."""
        body, ignored = decode_body(payload, kind)
        self._budget.check_fields(body)
        return body, ignored

    def _request(
        self,
        payload: Payload,
        body: OpenAIBody,
        ignored: tuple[str, ...],
        sampling_params: SamplingParams,
        contents: tuple[PromptContent, ...],
    ) -> GenerationRequest:
        adapter = self._adapter(body.model, payload)
        return GenerationRequest(
            request_id=payload.request_id,
            prompts=tuple(Prompt(content, adapter) for content in contents),
            sampling_params=sampling_params,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            truncate=self._kept(body.truncate_prompt_tokens, sampling_params.max_tokens),
            stream=_streams(payload, body),
            ignored_parameters=ignored,
        )

    def _kept(self, asked: int | None, max_tokens: int | None) -> int | None:
        """Return how many tokens of a prompt are kept, None for all. -1 leaves room for the answer and one more, as in vLLM."""
        if asked == 0:
            raise InvalidRequest("must be at least 1, or -1 for as many as fit, got 0", field="truncate_prompt_tokens")
        if asked != -1:
            return asked
        capabilities = self._facts().capabilities
        room = 0 if max_tokens is None else capabilities.max_model_len - max_tokens - 1
        return min(room, capabilities.max_input_tokens) if room > 0 else capabilities.max_input_tokens

    def _adapter(self, model: str | None, payload: Payload) -> str | None:
        """Return the adapter for a body's `model`. If that names none, it is the payload's."""
        return model if model in self._facts().capabilities.adapters else payload.adapter

    def _model_name(self, model: str | None) -> str:
        """Return the model name for the answer: the body's `model`, or the served model's name."""
        return self._facts().model_id if model in NOBODYS_MODEL else str(model)


class ChatDialect(OpenAIDialect):
    """Dialect of `/v1/chat/completions`, and of bodies with `messages` on the invoke routes."""

    def __init__(
        self,
        facts: Callable[[], ModelFacts],
        *,
        budget: Budget,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        enable_reasoning: bool | None = None,
        stream_formatters: Sequence[type[ChatFormatter]] = (ChatSseFormatter,),
        document_formatter: type[ChatFormatter] = ChatJsonFormatter,
    ) -> None:
        """`tool_call_parser` names a model family; None detects it from the chat template.

        `reasoning_parser` and `enable_reasoning` are the values of these options, passed on to `choose_reasoning_format`.
        `stream_formatters` format streams: the first one, unless `Accept` names another one's content type.
        `document_formatter` formats other answers.
        """
        super().__init__(facts, budget=budget)
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser
        self._enable_reasoning = enable_reasoning
        self._stream_formatters = {kind.content_type: kind for kind in stream_formatters}
        self._document_formatter = document_formatter

    def parse(self, payload: Payload) -> Parsed:
        return self.parsed(payload, *decode_body(payload, ChatCompletionBody))

    def parsed(self, payload: Payload, body: ChatCompletionBody, ignored: tuple[str, ...]) -> Parsed:
        """Check and translate. Raises `InvalidRequest`."""
        places = [f"messages[{place}]" for place in range(len(body.messages))]
        request, options = self.translated(payload, body, ignored, places)
        formatter = self.formatter(payload, request, options)
        return Parsed(request, formatter, body.alias, partial(check_length, "messages"), "messages", options.token_ids)

    def formatter(self, payload: Payload, request: GenerationRequest, options: ChatOptions) -> FormatterFactory:
        """Return what makes the formatter of the answer."""
        kind = chosen(self._stream_formatters, payload.accept) if request.stream else self._document_formatter
        return partial(kind, options=options)

    def translated(
        self, payload: Payload, body: ChatCompletionBody, ignored: tuple[str, ...], places: list[str]
    ) -> tuple[GenerationRequest, ChatOptions]:
        """Check and translate. `places` has the field of each message, for errors. Raises `InvalidRequest`."""
        self._budget.check_fields(body)
        tools, choice = body.offered()
        constraint, parser = self._tool_calls(body, tools, choice)
        reasoning = self._reasoning() if constraint is None else None
        marked = constraint is None and (choice == "auto" or reasoning is not None)
        computed: dict[str, object] = {"logprobs": body.num_logprobs, "structured_outputs": constraint}
        if marked:  # some models mark tool calls or reasoning with special tokens
            computed["skip_special_tokens"] = False
        params = body.sampling_params(self._facts().sampling_defaults, computed)
        chat = self._prompt(body, [] if choice == "none" else [tool.plain() for tool in tools], places)
        request = self._request(payload, body, ignored, params, (chat,))
        options = ChatOptions(
            model=self._model_name(body.model),
            created=int(time.time()),
            parser=parser,
            reasoning=reasoning,
            include_reasoning=body.include_reasoning is not False,
            logprobs=body.num_logprobs is not None,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            one_call=not body.parallel,
            one_function=body.functions is not None,
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
        )
        return request, options

    def _tool_calls(
        self, body: ChatCompletionBody, tools: list[Tool], choice: str
    ) -> tuple[StructuredOutputs | None, Callable[[], MessageParser]]:
        """Return the constraint on the generated text, and the parser for it.

        A tool that must be called goes before a format for the text, which the answer then does not have.
        """
        asked = body.constraint()
        if choice == "none" or (choice == "auto" and asked is not None):  # constrained text is not a tool call
            return asked, PlainParser
        if choice == "auto":
            schemas = {tool.function.name: tool.function.schema for tool in tools}
            form = choose_tool_format(self._facts().chat_template, self._tool_call_parser)
            return asked, partial(TaggedCallParser, form, schemas)
        if choice == "required":
            return calls_of(tools, body.tools_field, parallel=body.parallel), CallListParser
        return call_of(tools, choice), partial(NamedCallParser, choice)

    def _reasoning(self) -> ReasoningFormat | None:
        """Return how the model marks its reasoning, if it does.

        Not used with structured output: the grammar applies from the first token, so there is no room for reasoning.
        """
        template = self._facts().chat_template
        return choose_reasoning_format(template, self._reasoning_parser, enabled=self._enable_reasoning)

    def _prompt(self, body: ChatCompletionBody, tools: list[dict[str, Any]], places: list[str]) -> ChatPrompt:
        """Return the conversation. A final assistant message is continued unless the request says otherwise."""
        if not body.messages:
            raise InvalidRequest("must not be empty", field="messages")
        last = body.messages[-1]
        continues = body.continue_final_message
        if continues is None:
            continues = last.role == "assistant" and not last.calls and not body.add_generation_prompt
        opens = body.add_generation_prompt
        takes = self._facts().capabilities
        placed = list(zip(places, body.messages, strict=True))
        return ChatPrompt(
            messages=[
                message.with_media(field, takes_images=takes.takes_images, takes_sounds=takes.takes_sounds)
                for field, message in placed
            ],
            images=tuple(image for field, message in placed for image in message.images(field)),
            sounds=tuple(sound for field, message in placed for sound in message.sounds(field)),
            tools=tools or None,
            tool_prompt=TOOL_PROMPT if body.tool_prompt is None else body.tool_prompt,
            documents=body.documents,
            add_generation_prompt=not continues if opens is None else opens,
            continue_final_message=continues,
            template_kwargs=_template_kwargs(body),
        )


class CompletionsDialect(OpenAIDialect):
    """Dialect of `/v1/completions`, and of bodies with `prompt` on the invoke routes."""

    def __init__(
        self,
        facts: Callable[[], ModelFacts],
        *,
        budget: Budget,
        default_max_tokens: int | None = DEFAULT_COMPLETION_TOKENS,
        stream_formatters: Sequence[type[CompletionSseFormatter]] = (CompletionSseFormatter,),
    ) -> None:
        """`default_max_tokens` applies if a request does not set `max_tokens`.

        None, TGI's default, means as many as fit. `stream_formatters` are as for chats.
        """
        super().__init__(facts, budget=budget)
        self._default_max_tokens = default_max_tokens
        self._stream_formatters = {kind.content_type: kind for kind in stream_formatters}

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, CompletionBody)
        self._budget.check_sequences("prompt", num_prompts(body.prompt), 1)
        prompts, count = split_prompts(body.prompt, "prompt"), body.num_logprobs
        stop_token_ids = body.stop_token_ids
        if body.suffix:
            prompts, stop_token_ids = self._infilled(body, prompts)
        shown = 1 if body.n is None else body.n
        best_of = shown if body.best_of is None else body.best_of
        if best_of < shown:
            raise InvalidRequest(f"must be at least n ({shown}), got {best_of}", field="best_of")
        stream = _streams(payload, body)
        if best_of > shown and stream:
            raise InvalidRequest(
                "must equal n in a stream, because the best answers are only known at the end", field="best_of"
            )
        most = self._default_max_tokens if body.max_tokens is None else body.max_tokens
        prompt_only = most == 0 and bool(body.echo)
        computed: dict[str, object] = {
            "n": best_of,
            "max_tokens": 1 if prompt_only else most,
            "logprobs": 0 if count is None and best_of > shown else count,
            "prompt_logprobs": count if body.echo else None,
            "structured_outputs": body.constraint(),
            "stop_token_ids": None if stop_token_ids is None else tuple(stop_token_ids),
        }
        params = body.sampling_params(self._facts().sampling_defaults, computed)
        request = self._request(payload, body, ignored, params, prompts)
        options = CompletionOptions(
            model=self._model_name(body.model),
            created=int(time.time()),
            n=shown,
            echo=bool(body.echo),
            prompt_only=prompt_only,
            logprobs=count,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
        )
        kind = chosen(self._stream_formatters, payload.accept) if stream else CompletionJsonFormatter
        formatter = partial(kind, options=options)
        return Parsed(
            request,
            formatter,
            body.alias,
            partial(check_length, "prompt"),
            "prompt",
            options.token_ids,
            prompt_copies=shown if body.echo else 0,
        )

    def _infilled(
        self, body: CompletionBody, prompts: tuple[str | tuple[int, ...], ...]
    ) -> tuple[tuple[str, ...], list[int]]:
        """Return prompts for the text between each prompt and `suffix`, and the tokens that end it."""
        facts = self._facts()
        if facts.infill is None:
            raise UnsupportedFeature(NO_INFILL, field="suffix")
        if body.echo or body.truncate_prompt_tokens is not None:
            raise InvalidRequest("cannot be combined with echo or truncate_prompt_tokens", field="suffix")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            raise InvalidRequest("needs prompts of text, not of token ids", field="suffix")
        self._budget.check_repeated("suffix", str(body.suffix), len(texts))
        ends = [] if body.ignore_eos else list(facts.infill_ends)
        filled = tuple(facts.infill.prompt(text, str(body.suffix)) for text in texts)
        return filled, [*(body.stop_token_ids or ()), *ends]


def chosen(formatters: Mapping[str, type[Kind]], accept: str) -> type[Kind]:
    """Return the formatter whose content type `accept` names first, or the first formatter if it names none."""
    content_type = first_named(accept, formatters)
    return next(iter(formatters.values())) if content_type is None else formatters[content_type]


def decode_body(payload: Payload, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """Return the body and the names of its ignored fields.

    Raises `InvalidJson`, `InvalidBody` or `UnsupportedFeature`.
    """
    ignored = unknown_names(payload.fields, kind, nulls=False)
    try:
        body = decode_typed(payload.data, kind)
    except InvalidBody as error:
        if (unsupported := _unsupported_part(error)) is not None:
            raise unsupported from error
        raise
    if "chat_template" in ignored:
        raise UnsupportedFeature("cannot be set by a request", field="chat_template")
    return body, ignored


def _unsupported_part(error: InvalidBody) -> UnsupportedFeature | None:
    """Return the error for a part of a message that OpenAI or vLLM has, but no engine here."""
    part = _PART_TYPE.fullmatch(error.field or "")
    if part is None or error.given not in _OTHER_PARTS:
        return None
    return UnsupportedFeature(f"{error.given} is not supported: messages have text, images and sounds", field=part[1])


def check_length(
    field: str,
    request: GenerationRequest,  # noqa: ARG001  a `LengthCheck`
    position: int,
    tokens: int,
    capabilities: Capabilities,
) -> None:
    """Raise `ContextLengthExceeded`, which names `field`, if the prompt is too long for the model."""
    most = capabilities.max_input_tokens
    if tokens > most:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {capabilities.max_model_len} tokens, and prompts may have at most {most}; "
            f"prompt {position + 1} has {tokens}",
            field=field,
        )


def _template_kwargs(body: ChatCompletionBody) -> dict[str, Any]:
    """Return extra template variables: OpenAI's, TGI's, and those in the request's `chat_template_kwargs`.

    As in vLLM, an effort also says whether the model thinks, because many templates know only `enable_thinking`.
    """
    given: dict[str, Any] = {} if body.guideline is None else {"guideline": body.guideline}
    if body.reasoning_effort is not None:
        given |= {"reasoning_effort": body.reasoning_effort, "enable_thinking": body.reasoning_effort != "none"}
    return given | (body.chat_template_kwargs or {})


def _streams(payload: Payload, body: OpenAIBody) -> bool:
    """Return the body's `stream`, or if absent, whether SageMaker's streaming API was called.

    Raises `InvalidRequest` for options of a stream if there is none, as OpenAI and vLLM do.
    """
    streams = payload.stream if body.stream is None else body.stream
    if not streams and body.stream_options not in (None, StreamOptions()):
        raise InvalidRequest("may only be set with `stream`", field="stream_options")
    return streams
