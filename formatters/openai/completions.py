r"""OpenAI's text completions.

    document   {"id":"cmpl-1","object":"text_completion",...,"choices":[{"index":0,"text":"..",...}],"usage":{...}}
    stream     data: {"id":"cmpl-1","object":"text_completion",...,"choices":[{"index":0,"text":"..",...}],"usage":null}\n\n

The choices of prompt i have the indices i * n to i * n + n - 1. Source: OpenAI's API reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import CollectingFormatter, CompletionOutput, encode, event, line
from formatters.openai import schemas
from formatters.openai.base import DONE, FINISH_REASONS, SYSTEM_FINGERPRINT, finite, token_name, usage
from formatters.openai.errors import error_document
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the answer.

    It has the `n` best sequences of each prompt. `echo` puts the prompt in front of each, and `prompt_only` returns the
    prompt alone. `logprobs` is the number of alternatives per token, or None for no logprobs. `token_ids` adds the ids of
    the prompt and the new tokens. `tokens_as_ids` writes tokens as vLLM's `return_tokens_as_token_ids` does.
    """

    model: str
    created: int
    n: int = 1
    echo: bool = False
    prompt_only: bool = False
    logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


Head = tuple[str, Literal["text_completion"], int, str, str]
"""The fields at the start of every object in an answer."""


class CompletionFormatter(CollectingFormatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompts)
        self.options = options
        identity = f"cmpl-{request.request_id}"
        self.head: Head = (identity, "text_completion", options.created, options.model, SYSTEM_FINGERPRINT)
        self.num_tokens = 0

    def prompt(self, output: CompletionOutput) -> str:
        """Return the prompt to put in front of the text, "" without `echo` or if an earlier answer has shown it."""
        return output.prompt if self.options.echo and not self.resumed else ""

    def usage(self, cached_tokens: int | None = None) -> schemas.Usage:
        """Return the tokens used so far. As in vLLM, only the final usage tells `cached_tokens`."""
        return usage(sum(self.prompt_tokens), self.num_tokens, cached_tokens)

    def count(self, delta: TextDelta) -> None:
        """Add the new tokens to the usage."""
        if not self.options.prompt_only:
            self.num_tokens += len(delta.tokens)

    def logprobs(self, tokens: list[Token], offset: int) -> schemas.CompletionLogprobs | None:
        """Return the tokens' logprobs, if the request asked for them.

        `offset` is the position of the first token in the text, in characters.
        """
        if self.options.logprobs is None:
            return None
        *offsets, _ = accumulate((len(token.text) for token in tokens), initial=offset)
        as_id = self.options.tokens_as_ids
        return schemas.CompletionLogprobs(
            offsets,
            [None if token.logprob is None else finite(token.logprob) for token in tokens],
            [token_name(token.id) if as_id else token.text for token in tokens],
            [None if token.logprob is None else _alternatives(token, as_id) for token in tokens],
        )

    def prompt_ids(self, position: int) -> list[int] | UnsetType:
        """Return the ids of prompt number `position`, if the request asked for them."""
        return [*self.prompts[position].token_ids] if self.options.token_ids else UNSET

    def ids(self, tokens: Iterable[Token]) -> list[int] | UnsetType:
        """Return the ids of new tokens, if the request asked for them."""
        if not self.options.token_ids:
            return UNSET
        return [] if self.options.prompt_only else [token.id for token in tokens]


class CompletionJsonFormatter(CompletionFormatter):
    """One document at the end. With `best_of`, it has the sequences with the highest mean logprob."""

    def feed(self, delta: TextDelta) -> bytes:
        self.count(delta)
        return super().feed(delta)

    def finish(self) -> bytes:
        shown: list[CompletionOutput] = []
        samples = self.request.sampling_params.n
        for first in range(0, len(self.outputs), samples):
            outputs = self.outputs[first : first + samples]
            if samples > self.options.n:
                outputs = sorted(outputs, key=lambda output: output.mean_logprob, reverse=True)
            shown += outputs[: self.options.n]
        choices = [self._choice(index, output) for index, output in enumerate(shown)]
        return encode(schemas.CompletionFinal(*self.head, choices, self.usage(self.cached_tokens), self.continued_by))

    def _choice(self, index: int, output: CompletionOutput) -> schemas.CompletionComplete:
        text, tokens = self.prompt(output), [*output.prompt_tokens]
        if not self.options.prompt_only:
            text, tokens = text + output.text, [*tokens, *output.tokens]
        return schemas.CompletionComplete(
            index,
            text,
            self.logprobs(tokens, 0),
            FINISH_REASONS[output.finish_reason],
            self.prompt_ids(index // self.options.n),
            self.ids(output.tokens),
        )


class CompletionSseFormatter(CompletionFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    content_type = "text/event-stream"
    streams = True
    frame = staticmethod(event)
    end = DONE

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompts, options=options)
        self._lengths: list[int | None] = [None] * len(self.outputs)

    def feed(self, delta: TextDelta) -> bytes:
        self.count(delta)
        text, tokens = delta.text, [*delta.prompt_tokens, *delta.tokens]
        if self.options.prompt_only:
            text, tokens = "", list(delta.prompt_tokens)
        length = self._lengths[delta.index]
        prompt_ids: list[int] | UnsetType = UNSET
        if length is None:
            length, text = 0, self.prompt(self.outputs[delta.index]) + text
            prompt_ids = self.prompt_ids(delta.index // self.request.sampling_params.n)
        if not (text or tokens or delta.finish_reason):
            return b""
        self._lengths[delta.index] = length + len(text)
        reason = FINISH_REASONS[delta.finish_reason]
        logprobs, ids = self.logprobs(tokens, length), self.ids(delta.tokens)
        choice = schemas.CompletionDelta(
            delta.index, text, logprobs, reason, self.cut_by, prompt_ids, ids, self.continued_by
        )
        return self._chunk([choice], self.usage() if self.options.continuous_usage else None)

    def finish(self) -> bytes:
        return (self._chunk([], self.usage(self.cached_tokens)) if self.options.include_usage else b"") + self.end

    def error(self, error: LMIError) -> bytes:
        return self.frame(error_document(error)) + self.end

    def _chunk(self, choices: list[schemas.CompletionDelta], usage: schemas.Usage | None) -> bytes:
        return self.frame(encode(schemas.Chunk(*self.head, choices, usage)))


class CompletionJsonLinesFormatter(CompletionSseFormatter):
    """The same objects, one per line and without `[DONE]`, as LMI's asynchronous handlers stream them."""

    content_type = "application/jsonlines"
    frame = staticmethod(line)
    end = b""


def _alternatives(token: Token, as_id: bool) -> dict[str, float]:
    """Return the logprobs of the most probable tokens and the sampled one, by text.

    If two tokens have the same text, the likelier one is shown.
    """
    best: dict[str, float] = {}
    others = () if token.id in [other.id for other in token.top] else (token,)
    for other in (*token.top, *others):
        best.setdefault(token_name(other.id) if as_id else other.text, finite(other.logprob))
    return best
