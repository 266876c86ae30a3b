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

from json.encoder import encode_basestring as quote

import msgspec

from formatters.aleph_alpha.errors import error_document
from formatters.base import Answer, Formatter, json_array
from formatters.openai.base import number
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest

FINISH_REASONS = {
    FinishReason.EOS_TOKEN: "end_of_text",
    FinishReason.STOP_SEQUENCE: "stop_sequence_reached",
    FinishReason.LENGTH: "maximum_tokens",
    FinishReason.ABORT: "content_filter",  # as in its chat API
}


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer contains.

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


class CompletionFormatter(Formatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens)
        self.options = options
        self.samples = request.sampling_params.n
        self.prompt = request.prompts[0] if options.echo else ""
        self.num_tokens = 0

    def shown(self, delta: TextDelta) -> TextDelta:
        """Count the new tokens and return the part of the delta that the client sees."""
        if self.options.prompt_only:  # engines generate at least one token, so drop it
            reason = None if delta.finish_reason is None else FinishReason.LENGTH
            return TextDelta(index=delta.index, prompt_tokens=delta.prompt_tokens, finish_reason=reason)
        self.num_tokens += len(delta.tokens)
        return delta

    def text(self, index: int, answer: Answer) -> str:
        """Render the fields of completion `index`, either all of it or only its new part."""
        options, tokens = self.options, [*answer.prompt_tokens, *answer.tokens]
        fields = [f'"index":{index}']
        if options.log_probs:
            fields.append(f'"log_probs":{json_array(map(_log_probs, tokens))}')
        fields.append(f'"completion":{quote(answer.prompt + answer.text)}')
        if options.raw:
            fields.append(f'"raw_completion":{quote(answer.prompt + "".join(token.text for token in answer.tokens))}')
        if options.tokens:
            fields.append(f'"completion_tokens":{json_array(quote(token.text) for token in tokens)}')
        return ",".join(fields)

    def counts(self) -> str:
        """Render the token counts. The prompt is counted once per sequence."""
        prompt_tokens = sum(self.prompt_tokens) * self.samples
        return f'"num_tokens_prompt_total":{prompt_tokens},"num_tokens_generated":{self.num_tokens}'


class CompletionJsonFormatter(CompletionFormatter):
    """One document at the end. With `best_of`, it has the sequences with the highest mean logprob."""

    content_type = "application/json"
    streams = False

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._answers = [Answer(self.prompt) for _ in range(self.samples)]

    def feed(self, delta: TextDelta) -> bytes:
        """Store the delta."""
        self._answers[delta.index].feed(self.shown(delta))
        return b""

    def finish(self) -> bytes:
        """Return the document."""
        answers = self._answers
        if self.samples > self.options.n:
            answers = sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)[: self.options.n]
        completions = json_array(
            f'{{{self.text(index, answer)},"finish_reason":{_finish_reason(answer.finish_reason)}}}'
            for index, answer in enumerate(answers)
        )
        model_version = quote(self.options.model_version)
        return f'{{"completions":{completions},"model_version":{model_version},{self.counts()}}}'.encode()


class CompletionSseFormatter(CompletionFormatter):
    """One event for each update to a completion, one at the end of each completion, and one at the very end."""

    content_type = "text/event-stream"
    streams = True

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._prompts = [self.prompt] * self.samples  # emptied once they are sent
        self._detailed = options.log_probs or options.tokens or options.raw

    def feed(self, delta: TextDelta) -> bytes:
        """Return a chunk with the new text and details. After the last chunk comes the completion's summary."""
        index = delta.index
        new, self._prompts[index] = Answer(self._prompts[index]), ""
        new.feed(self.shown(delta))
        events = b""
        if new.prompt or new.text or (self._detailed and (new.prompt_tokens or new.tokens)):
            events += _event(f'{{"type":"stream_chunk",{self.text(index, new)}}}')
        if new.finish_reason is not None:
            model_version, reason = quote(self.options.model_version), _finish_reason(new.finish_reason)
            events += _event(
                f'{{"type":"stream_summary","index":{index},"model_version":{model_version},"finish_reason":{reason}}}'
            )
        return events

    def finish(self) -> bytes:
        """Return the summary event for all completions."""
        return _event(f'{{"type":"completion_summary",{self.counts()}}}')

    def error(self, error: LMIError) -> bytes:
        """Return the error event, which ends the stream."""
        return _event(error_document(error).decode())


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _finish_reason(reason: FinishReason | None) -> str:
    return "null" if reason is None else f'"{FINISH_REASONS[reason]}"'


def _log_probs(token: Token) -> str:
    """Render the logprobs of the most probable tokens and the sampled one, by text. A prompt's first token has none."""
    if token.logprob is None:
        return "{}"
    best: dict[str, float | None] = {}
    for other in (*token.top, token):
        best.setdefault(token.text if other.id == token.id else other.text, other.logprob)
    best[token.text] = token.logprob  # clients look the sampled token up by its text, which a likelier token may share
    return "{" + ",".join(f"{quote(text)}:{number(logprob)}" for text, logprob in best.items()) + "}"
