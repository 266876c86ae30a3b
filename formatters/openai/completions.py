r"""OpenAI's text completions.

    document   {"id":"cmpl-1","object":"text_completion",...,"choices":[{"index":0,"text":"..",...}],"usage":{...}}
    stream     data: {"id":"cmpl-1","object":"text_completion",...,"choices":[{"index":0,"text":"..",...}],"usage":null}\n\n

The choices of prompt i have the indices i * n to i * n + n - 1. Source: OpenAI's API reference.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quote

import msgspec

from formatters.base import Answer, Formatter
from formatters.openai.base import DONE, finish_reason, head, number, usage
from formatters.openai.errors import error_document
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer contains.

    It has the `n` best sequences of each prompt. `echo` puts the prompt in front of each, and `prompt_only` returns the
    prompt alone. `logprobs` is the number of alternatives per token, or None for no logprobs.
    """

    model: str
    created: int
    n: int = 1
    echo: bool = False
    prompt_only: bool = False
    logprobs: int | None = None
    include_usage: bool = False
    continuous_usage: bool = False


class CompletionFormatter(Formatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens)
        self.options = options
        self._samples = request.sampling_params.n
        self.head = head(f"cmpl-{request.request_id}", "text_completion", options.created, options.model)
        self.num_tokens = 0

    def prompt_of(self, index: int) -> str:
        """Return the prompt text to put in front of sequence `index`, "" without `echo`."""
        return self.request.prompts[index // self._samples] if self.options.echo else ""

    def usage(self) -> str:
        """Render the usage so far."""
        return usage(sum(self.prompt_tokens), self.num_tokens)

    def count(self, delta: TextDelta) -> None:
        """Add the new tokens to the usage."""
        if not self.options.prompt_only:
            self.num_tokens += len(delta.tokens)

    def choice(self, index: int, text: str, logprobs: str, reason: FinishReason | None) -> str:
        """Render one choice."""
        return f'{{"index":{index},"text":{quote(text)},"logprobs":{logprobs},"finish_reason":{finish_reason(reason)}}}'

    def logprobs(self, tokens: list[Token], offset: int) -> str:
        """Render the tokens' logprobs, or null if the request did not ask for them.

        `offset` is the position of the first token in the text, in characters.
        """
        if self.options.logprobs is None:
            return "null"
        offsets, place = [], offset
        for token in tokens:
            offsets.append(str(place))
            place += len(token.text)
        numbers = ["null" if token.logprob is None else number(token.logprob) for token in tokens]
        alternatives = ["null" if token.logprob is None else _alternatives(token) for token in tokens]
        return (
            f'{{"text_offset":[{",".join(offsets)}],"token_logprobs":[{",".join(numbers)}],'
            f'"tokens":[{",".join(quote(token.text) for token in tokens)}],"top_logprobs":[{",".join(alternatives)}]}}'
        )


class CompletionJsonFormatter(CompletionFormatter):
    """One document at the end. With `best_of`, it has the sequences with the highest mean logprob."""

    content_type = "application/json"
    streams = False

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._answers = [Answer(self.prompt_of(index)) for index in range(len(request.prompts) * self._samples)]

    def feed(self, delta: TextDelta) -> bytes:
        """Store the delta."""
        self.count(delta)
        self._answers[delta.index].feed(delta)
        return b""

    def finish(self) -> bytes:
        """Return the document."""
        shown: list[Answer] = []
        for first in range(0, len(self._answers), self._samples):
            answers = self._answers[first : first + self._samples]
            if self._samples > self.options.n:
                answers = sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)
            shown += answers[: self.options.n]
        choices = ",".join(self._choice(index, answer) for index, answer in enumerate(shown))
        return f'{self.head}[{choices}],"usage":{self.usage()}}}'.encode()

    def _choice(self, index: int, answer: Answer) -> str:
        tokens = [*answer.prompt_tokens, *answer.tokens]
        text = answer.prompt + answer.text
        if self.options.prompt_only:
            tokens, text = list(answer.prompt_tokens), answer.prompt
        return self.choice(index, text, self.logprobs(tokens, 0), answer.finish_reason)


class CompletionSseFormatter(CompletionFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    content_type = "text/event-stream"
    streams = True

    def __init__(
        self, request: GenerationRequest, prompt_tokens: tuple[int, ...], *, options: CompletionOptions
    ) -> None:
        super().__init__(request, prompt_tokens, options=options)
        self._lengths: list[int | None] = [None] * (len(request.prompts) * self._samples)

    def feed(self, delta: TextDelta) -> bytes:
        """Return a chunk with what is new."""
        self.count(delta)
        text, tokens = delta.text, [*delta.prompt_tokens, *delta.tokens]
        if self.options.prompt_only:
            text, tokens = "", list(delta.prompt_tokens)
        length = self._lengths[delta.index]
        if length is None:
            length, text = 0, self.prompt_of(delta.index) + text
        if not (text or tokens or delta.finish_reason):
            return b""
        self._lengths[delta.index] = length + len(text)
        choice = self.choice(delta.index, text, self.logprobs(tokens, length), delta.finish_reason)
        running = self.usage() if self.options.continuous_usage else "null"
        return self.record(f'{self.head}[{choice}],"usage":{running}}}'.encode())

    def finish(self) -> bytes:
        """Return the usage, if requested, and the end of the stream."""
        last = f'{self.head}[],"usage":{self.usage()}}}'.encode()
        return (self.record(last) if self.options.include_usage else b"") + self.end()

    def error(self, error: LMIError) -> bytes:
        """Return the error and the end of the stream."""
        return self.record(error_document(error)) + self.end()

    def record(self, data: bytes) -> bytes:
        """Frame one object as an event."""
        return b"data: " + data + b"\n\n"

    def end(self) -> bytes:
        """Return the end-of-stream marker."""
        return DONE


class CompletionJsonLinesFormatter(CompletionSseFormatter):
    """The same objects, one per line and without `[DONE]`, as LMI's asynchronous handlers stream them."""

    content_type = "application/jsonlines"

    def record(self, data: bytes) -> bytes:
        """Frame one object as a line."""
        return data + b"\n"

    def end(self) -> bytes:
        """Return nothing: the stream ends when the connection closes."""
        return b""


def _alternatives(token: Token) -> str:
    """Render the logprobs of the most probable tokens and the sampled one, by text.

    If two tokens have the same text, the likelier one is shown.
    """
    best: dict[str, float | None] = {}
    others = () if token.id in [other.id for other in token.top] else (token,)
    for other in (*token.top, *others):
        best.setdefault(other.text, other.logprob)
    return "{" + ",".join(f"{quote(text)}:{number(logprob)}" for text, logprob in best.items()) + "}"
