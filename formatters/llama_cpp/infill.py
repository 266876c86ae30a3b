r"""llama.cpp's completions, as `/infill` answers them.

    document   {"index":0,"content":"a + b","tokens":[],"id_slot":-1,"stop":true,"model":"..",...}
    stream     data: {"index":0,"content":"a +","tokens":[64,488],"stop":false,"id_slot":-1,...}\n\n
               data: {"index":0,"content":"","tokens":[],"id_slot":-1,"stop":true,"model":"..",...}\n\n

Several completions are an array. A stream does not end with `[DONE]`.

Source: the README of llama.cpp's server, and its answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import CollectingFormatter, CompletionOutput, encode, event
from formatters.llama_cpp import schemas
from formatters.llama_cpp.errors import error_document
from formatters.openai.base import finite
from lmi_handlers.core.errors import LMIError, entry_of
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt

NO_SLOT = -1


class InfillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the answer.

    `token_ids` adds the ids of the new tokens, which streams always have. With `response_fields`, the last object of a
    completion has only these: names, or paths such as "timings/prompt_n". `statuses` has the HTTP status by error class.
    """

    model: str
    settings: schemas.LlamaCppSettings
    statuses: dict[type[LMIError], int]
    token_ids: bool = False
    response_fields: tuple[str, ...] = ()


class InfillFormatter(CollectingFormatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: InfillOptions
    ) -> None:
        super().__init__(request, prompts)
        self.options = options
        self._stops = [""] * len(self.outputs)
        self._began = time.monotonic()
        self._first: float | None = None
        self._counts = [0] * len(self.outputs)

    def take(self, delta: TextDelta) -> None:
        """Add a delta to its sequence. The time to the first one is that of the prompt."""
        if self._first is None:
            self._first = time.monotonic()
        self.outputs[delta.index].feed(delta)
        self._counts[delta.index] += len(delta.tokens)
        self._stops[delta.index] = delta.stop_string or ""

    def completion(self, index: int, content: str, tokens: list[int]) -> schemas.LlamaCppCompletion:
        """Return the object that ends completion `index`."""
        output, stopped_by = self.outputs[index], self._stops[index]
        cached = self.cached_tokens or 0
        return schemas.LlamaCppCompletion(
            index=index,
            content=content,
            tokens=tokens,
            id_slot=NO_SLOT,
            stop=True,
            model=self.options.model,
            tokens_predicted=self._counts[index],
            tokens_evaluated=self.prompt_tokens[0],
            generation_settings=self.options.settings,
            prompt=self.prompts[0].text,
            has_new_line="\n" in output.text,
            truncated=self.truncated is not None,
            stop_type=_stop_type(output, stopped_by),
            stopping_word=stopped_by,
            tokens_cached=cached,
            timings=self._timings(self._counts[index], cached),
            continuation=self.continued_by,
        )

    def probabilities(self, tokens: Iterable[Token]) -> list[schemas.LlamaCppToken] | UnsetType:
        """Return the tokens with the most probable ones in their places, if the request asked for them."""
        most = self.options.settings.n_probs
        if most <= 0:
            return UNSET
        return [
            schemas.LlamaCppToken(
                *_shown(token), [schemas.LlamaCppTopToken(*_shown(other)) for other in token.top[:most]]
            )
            for token in tokens
        ]

    def write(self, completion: schemas.LlamaCppCompletion) -> bytes:
        """Render the object, or the fields of it that the request asks for."""
        if not self.options.response_fields:
            return encode(completion)
        return encode(fields_of(msgspec.json.decode(encode(completion)), self.options.response_fields))

    def _timings(self, predicted: int, cached: int) -> schemas.LlamaCppTimings:
        now = time.monotonic()
        first = now if self._first is None else self._first
        evaluated = max(self.prompt_tokens[0] - cached, 0)
        prompt, generation = first - self._began, now - first
        return schemas.LlamaCppTimings(
            cached, evaluated, *_rates(evaluated, prompt), predicted, *_rates(predicted, generation)
        )


class InfillJsonFormatter(InfillFormatter):
    """One document at the end."""

    def feed(self, delta: TextDelta) -> bytes:
        self.take(delta)
        return b""

    def finish(self) -> bytes:
        documents = []
        for index, output in enumerate(self.outputs):
            ids = [token.id for token in output.tokens] if self.options.token_ids else []
            completion = self.completion(index, output.text, ids)
            completion.completion_probabilities = self.probabilities(output.tokens)
            documents.append(self.write(completion))
        return documents[0] if len(documents) == 1 else b"[" + b",".join(documents) + b"]"


class InfillSseFormatter(InfillFormatter):
    """One event for each update to a completion, and one at its end."""

    content_type = "text/event-stream"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        self.take(delta)
        index, events = delta.index, b""
        if delta.text or delta.tokens:
            chunk = schemas.LlamaCppChunk(
                index=index,
                content=delta.text,
                tokens=[token.id for token in delta.tokens],
                stop=False,
                id_slot=NO_SLOT,
                tokens_predicted=self._counts[index],
                tokens_evaluated=self.prompt_tokens[0],
                completion_probabilities=self.probabilities(delta.tokens),
            )
            events += event(encode(chunk))
        self.outputs[index].tokens.clear()
        if delta.finish_reason is not None:
            events += event(self.write(self.completion(index, "", [])))
        return events

    def finish(self) -> bytes:
        return b""  # the last event of each completion has ended it

    def error(self, error: LMIError) -> bytes:
        return event(error_document(error, entry_of(error, self.options.statuses, 500)))


def fields_of(document: Any, paths: Sequence[str]) -> dict[str, Any]:
    """Return the values at `paths` by these, without those that are missing: `{"timings/prompt_n": 5}`."""
    found: dict[str, Any] = {}
    for path in paths:
        value = document
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found


def _stop_type(output: CompletionOutput, stopped_by: str) -> schemas.StopType:
    if stopped_by:
        return "word"
    if output.finish_reason in (FinishReason.EOS_TOKEN, FinishReason.STOP_SEQUENCE):
        return "eos"  # tokens that begin another file are ends to llama.cpp, too
    return "limit" if output.finish_reason is FinishReason.LENGTH else "none"


def _shown(token: Token) -> tuple[int, str, list[int], float]:
    return token.id, token.data.decode(errors="replace"), [*token.data], finite(token.logprob)


def _rates(tokens: int, seconds: float) -> tuple[float, float, float]:
    """Return milliseconds, milliseconds per token and tokens per second."""
    return 1e3 * seconds, 1e3 * seconds / max(tokens, 1), tokens / seconds if seconds > 0 else 0.0
