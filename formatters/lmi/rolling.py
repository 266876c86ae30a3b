r"""LMI's rolling-batch formats, byte for byte as DJL Serving 0.31 writes them.

    json        {"generated_text": "Deep Learning is"}
    jsonlines   {"token": {"id": 338, "text": " is", "log_prob": -0.007}, "generated_text": "Deep Learning is"}\n
    sse         data: {"token": {...}}\n\n

Sources: the LMI input/output schema document, and responses recorded from the real server (tests/data/lmi-0.31.json).
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False

from formatters.base import Answer, Formatter
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest


class LmiFormatter(Formatter):
    """Shared by LMI's rolling-batch formats: the token object, the details, and the text so far."""

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...]) -> None:
        super().__init__(request, prompt_tokens)
        self._n = request.sampling_params.n
        self._answers = [Answer(prompt) for prompt in request.prompts for _ in range(self._n)]

    def token(self, token: Token) -> str:
        """Render one token object.

        If special tokens are skipped, their text is empty, because clients print whatever text they receive.
        """
        logprob = number(token.logprob)
        if not token.special:
            return f'{{"id": {token.id}, "text": {quote(token.text)}, "log_prob": {logprob}}}'
        text = quote("" if self.request.sampling_params.skip_special_tokens else token.text)
        return f'{{"id": {token.id}, "text": {text}, "log_prob": {logprob}, "special_token": true}}'

    def tokens(self, tokens: list[Token] | tuple[Token, ...]) -> str:
        """Render a list of token objects."""
        return "[" + ", ".join(map(self.token, tokens)) + "]"

    def optional_details(self, answer: Answer) -> str:
        """Render `prefill` and `top_tokens` if the request asked for them, each after a comma."""
        parts = ""
        if answer.prompt_tokens:
            parts += f', "prefill": {self.tokens(answer.prompt_tokens)}'
        if self.request.top_n_tokens and answer.tokens:
            count = self.request.top_n_tokens
            parts += f', "top_tokens": [{", ".join(self.tokens(token.top[:count]) for token in answer.tokens)}]'
        return parts

    def generated_text(self, answer: Answer) -> str:
        """Render the answer's text as a JSON string. `return_full_text` puts the prompt in front."""
        return quote(answer.prompt + answer.text if self.request.return_full_text else answer.text)


class JsonFormatter(LmiFormatter):
    """One document at the end, or a list of documents for several prompts."""

    content_type = "application/json"
    streams = False

    def feed(self, delta: TextDelta) -> bytes:
        """Store the delta."""
        self._answers[delta.index].feed(delta)
        return b""

    def finish(self) -> bytes:
        """Return the document."""
        groups = [self._answers[start : start + self._n] for start in range(0, len(self._answers), self._n)]
        documents = [self._document(group) for group in groups]
        return (documents[0] if len(documents) == 1 else _array(documents)).encode()

    def _document(self, answers: list[Answer]) -> str:
        # Beams are already ranked, and their score is not just the probability.
        best = answers[0] if self.request.beam_search else max(answers, key=lambda answer: answer.logprob)
        text = self.generated_text(best)
        if self._n > 1:
            others = [self._sequence(answer) for answer in answers if answer is not best]
            details = (
                f'{{"inputs": {quote(best.prompt)}, {self._facts(best)}, "tokens": {self.tokens(best.tokens)}'
                f'{self.optional_details(best)}, "best_of_sequences": {_array(others)}}}'
            )
        elif self.request.details:
            details = (
                f'{{{self._facts(best)}, "inputs": {quote(best.prompt)}, "tokens": {self.tokens(best.tokens)}'
                f"{self.optional_details(best)}}}"
            )
        else:
            return f'{{"generated_text": {text}}}'
        return f'{{"generated_text": {text}, "details": {details}}}'

    def _sequence(self, answer: Answer) -> str:
        return (
            f'{{{self._facts(answer)}, "tokens": {self.tokens(answer.tokens)}{self.optional_details(answer)}, '
            f'"generated_text": {self.generated_text(answer)}}}'
        )

    @staticmethod
    def _facts(answer: Answer) -> str:
        return f'"finish_reason": {answer.reason}, "generated_tokens": {len(answer.tokens)}'


class JsonLinesFormatter(LmiFormatter):
    """One line per token. The last line also has the whole text and the details.

    Only the first sequence is streamed.
    """

    content_type = "application/jsonlines"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Return one line per token."""
        if delta.index:
            return b""
        answer = self._answers[0]
        answer.feed(delta)
        tokens = [self.token(token) for token in delta.tokens]
        if delta.finish_reason is None:
            return "".join([self.record(f'{{"token": {token}}}') for token in tokens]).encode()
        last = tokens.pop() if tokens else self.token(_NO_TOKEN)
        lines = [self.record(f'{{"token": {token}}}') for token in tokens]
        details = self._details(answer, len(answer.tokens)) if self.request.details else ""
        lines.append(self.record(f'{{"token": {last}, "generated_text": {self.generated_text(answer)}{details}}}'))
        return "".join(lines).encode()

    def finish(self) -> bytes:
        """Return nothing: the last token's line ends the stream."""
        return b""

    def error(self, error: LMIError) -> bytes:
        """Return the last line, with a placeholder token (id -1) and `finish_reason` "error"."""
        answer = self._answers[0]
        answer.finish_reason = FinishReason.ERROR
        token = f'{{"id": -1, "text": "", "log_prob": -1, "special_token": true, "error_msg": {quote(str(error))}}}'
        if self.request.details:
            details = self._details(answer, len(answer.tokens) + 1)
        else:
            details = ', "details": {"finish_reason": "error"}'
        return self.record(f'{{"token": {token}, "generated_text": {quote(answer.text)}{details}}}').encode()

    def record(self, document: str) -> str:
        """Frame one document as a line."""
        return document + "\n"

    def _details(self, answer: Answer, generated_tokens: int) -> str:
        return (
            f', "details": {{"finish_reason": {answer.reason}, "generated_tokens": {generated_tokens}, '
            f'"inputs": {quote(answer.prompt)}{self.optional_details(answer)}}}'
        )


class SseFormatter(JsonLinesFormatter):
    """The same documents as server-sent events."""

    content_type = "text/event-stream"

    def record(self, document: str) -> str:
        """Frame one document as an event."""
        return f"data: {document}\n\n"


_NO_TOKEN = Token(id=-1, text="")


def number(value: float | None) -> str:
    """Render a logprob, or null if it is missing or not finite."""
    return repr(value) if value is not None and math.isfinite(value) else "null"


def _array(documents: list[str]) -> str:
    return "[" + ", ".join(documents) + "]"
