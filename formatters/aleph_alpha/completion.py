r"""Aleph Alpha's text completions.

    document   {"completions":[{"index":0,"completion":"..","finish_reason":"maximum_tokens"}],"model_version":"..",...}
    stream     data: {"type":"stream_chunk","index":0,"completion":".."}\n\n
               data: {"type":"stream_summary","index":0,"model_version":"..","finish_reason":"maximum_tokens"}\n\n
               data: {"type":"completion_summary","num_tokens_prompt_total":4,"num_tokens_generated":7}\n\n

The JSON is compact. Unlike a chat stream, this stream does not end with `[DONE]`.

Sources: Aleph Alpha's API reference, "Completion". The field order and the end of the stream follow the server
responses recorded in the tests of Aleph Alpha's client.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from formatters.aleph_alpha import schemas
from formatters.aleph_alpha.errors import error_document
from formatters.base import CollectingFormatter, CompletionOutput, encode, event
from formatters.openai.base import finite
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt

FINISH_REASONS: dict[FinishReason | None, Any] = {
    None: None,  # not finished yet
    FinishReason.EOS_TOKEN: "end_of_text",
    FinishReason.STOP_SEQUENCE: "stop_sequence_reached",
    FinishReason.LENGTH: "maximum_tokens",
    FinishReason.ABORT: "content_filter",  # as in its chat API
}


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the answer.

    It has the `n` best sequences. `echo` puts the prompt in front of each, and `prompt_only` returns the prompt alone.
    `log_probs` adds the probabilities of each token, `tokens` adds the text of each token, and `raw` adds the text
    including special tokens.
    """

    model_version: str
    n: int = 1
    echo: bool = False
    prompt_only: bool = False
    log_probs: bool = False
    tokens: bool = False
    raw: bool = False


class CompletionFormatter(CollectingFormatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompts)
        self.options = options
        self.num_tokens = 0
        if not options.echo:
            for output in self.outputs:
                output.prompt = ""

    def resume(self, delta: TextDelta) -> None:
        super().resume(delta)
        self.outputs[delta.index].prompt = ""  # an earlier answer has shown it

    def shown(self, delta: TextDelta) -> TextDelta:
        """Count the new tokens and return the part of the delta that the client sees."""
        if self.options.prompt_only:  # engines generate at least one token, so drop it
            reason = None if delta.finish_reason is None else FinishReason.LENGTH
            return TextDelta(index=delta.index, prompt_tokens=delta.prompt_tokens, finish_reason=reason)
        self.num_tokens += len(delta.tokens)
        return delta

    def fields(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """Return the fields of completion `index`, either of all of it or of its new part."""
        options, tokens = self.options, [*output.prompt_tokens, *output.tokens]
        raw = output.prompt + "".join(token.text for token in output.tokens) if options.raw else UNSET
        return {
            "index": index,
            "log_probs": [_log_probs(token) for token in tokens] if options.log_probs else UNSET,
            "completion": output.prompt + output.text,
            "raw_completion": raw,
            "completion_tokens": [token.text for token in tokens] if options.tokens else UNSET,
        }

    def counts(self) -> tuple[int, int]:
        """Return the numbers of prompt tokens and of generated tokens. The prompt is counted once per sequence."""
        return sum(self.prompt_tokens) * len(self.outputs), self.num_tokens


class CompletionJsonFormatter(CompletionFormatter):
    """One document at the end. With `best_of`, it has the sequences with the highest mean logprob."""

    def feed(self, delta: TextDelta) -> bytes:
        return super().feed(self.shown(delta))

    def finish(self) -> bytes:
        outputs = self.outputs
        if len(outputs) > self.options.n:
            outputs = sorted(outputs, key=lambda output: output.mean_logprob, reverse=True)[: self.options.n]
        completions = [
            schemas.AlephAlphaCompletion(
                **self.fields(index, output), finish_reason=FINISH_REASONS[output.finish_reason]
            )
            for index, output in enumerate(outputs)
        ]
        return encode(
            schemas.AlephAlphaCompletions(completions, self.options.model_version, *self.counts(), self.continued_by)
        )


class CompletionSseFormatter(CompletionFormatter):
    """One event for each update to a completion, one at the end of each completion, and one at the very end."""

    content_type = "text/event-stream"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Return a chunk with the new text and details. After the last chunk comes the completion's summary."""
        index, options, sequence = delta.index, self.options, self.outputs[delta.index]
        new, sequence.prompt = CompletionOutput(sequence.prompt), ""  # the prompt is sent once
        new.feed(self.shown(delta))
        events = b""
        detailed = options.log_probs or options.tokens or options.raw
        if new.prompt or new.text or (detailed and (new.prompt_tokens or new.tokens)):
            events += event(encode(schemas.AlephAlphaStreamChunk(**self.fields(index, new))))
        if new.finish_reason is not None:
            reason = FINISH_REASONS[new.finish_reason]
            summary = schemas.AlephAlphaStreamSummary(
                index, options.model_version, reason, self.cut_by, self.continued_by
            )
            events += event(encode(summary))
        return events

    def finish(self) -> bytes:
        return event(encode(schemas.AlephAlphaCompletionSummary(*self.counts())))

    def error(self, error: LMIError) -> bytes:
        return event(error_document(error))


def _log_probs(token: Token) -> dict[str, float]:
    """Return the logprobs of the most probable tokens and the sampled one, by text. A prompt's first token has none."""
    if token.logprob is None:
        return {}
    best: dict[str, float] = {}
    for other in (*token.top, token):
        best.setdefault(token.text if other.id == token.id else other.text, finite(other.logprob))
    best[token.text] = finite(token.logprob)  # clients look it up by text, which a likelier token may share
    return best
