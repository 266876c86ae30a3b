r"""LMI's rolling-batch formats, byte for byte as DJL Serving 0.31 writes them.

    json        {"generated_text": "Deep Learning is"}
    jsonlines   {"token": {"id": 338, "text": " is", "log_prob": -0.007}, "generated_text": "Deep Learning is"}\n
    sse         data: {"token": {...}}\n\n

Sources: the LMI input/output schema document, and responses recorded from the real server (tests/apis/test_lmi_vectors.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False
from math import isfinite
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import CollectingFormatter, CompletionOutput, encode, event, line, python_float
from formatters.lmi import schemas
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token


class LmiFormatter(CollectingFormatter):
    """Shared by LMI's rolling-batch formats: the token object and the details."""

    def token(self, token: Token) -> schemas.LmiToken:
        """Return one token object.

        If special tokens are skipped, their text is empty, because clients print whatever text they receive.
        """
        log_prob = None if token.logprob is None else python_float(token.logprob)
        if not token.special:
            return schemas.LmiToken(token.id, token.text, log_prob)
        text = "" if self.request.sampling_params.skip_special_tokens else token.text
        return schemas.LmiToken(token.id, text, log_prob, special_token=True)

    def tokens(self, tokens: Iterable[Token]) -> list[schemas.LmiToken]:
        return [self.token(token) for token in tokens]

    def prefill(self, output: CompletionOutput) -> list[schemas.LmiToken] | UnsetType:
        """Return the prompt's tokens, if the request asked for them."""
        return self.tokens(output.prompt_tokens) if output.prompt_tokens else UNSET

    def top_tokens(self, output: CompletionOutput) -> list[list[schemas.LmiToken]] | UnsetType:
        """Return the most probable tokens at each position, if the request asked for them."""
        count = self.request.top_n_tokens
        return [self.tokens(token.top[:count]) for token in output.tokens] if count and output.tokens else UNSET


class JsonFormatter(LmiFormatter):
    """One document at the end, or a list of documents for several prompts."""

    def finish(self) -> bytes:
        n = self.request.sampling_params.n
        documents = [self._document(self.outputs[start : start + n]) for start in range(0, len(self.outputs), n)]
        return dumps(documents[0] if len(documents) == 1 else documents)

    def _document(self, outputs: list[CompletionOutput]) -> schemas.LmiResponse | schemas.LmiBestOfResponse:
        # Beams are already ranked, and their score is not just the probability.
        best = outputs[0] if self.request.beam_search else max(outputs, key=lambda output: output.cumulative_logprob)
        text = self.generated_text(best)
        if len(outputs) > 1:
            others = [
                schemas.LmiSequence(**self._details(output), generated_text=self.generated_text(output))
                for output in outputs
                if output is not best
            ]
            details = schemas.LmiBestOfDetails(inputs=best.prompt, **self._details(best), best_of_sequences=others)
            return schemas.LmiBestOfResponse(text, details)
        if not self.request.details:
            return schemas.LmiResponse(text, continuation=self.continued_by)
        shown = schemas.LmiDetails(inputs=best.prompt, **self._details(best))
        return schemas.LmiResponse(text, shown, self.continued_by)

    def _details(self, output: CompletionOutput) -> dict[str, Any]:
        return {
            "finish_reason": output.finish_reason,
            "generated_tokens": len(output.tokens),
            "tokens": self.tokens(output.tokens),
            "prefill": self.prefill(output),
            "top_tokens": self.top_tokens(output),
        }


class JsonLinesFormatter(LmiFormatter):
    """One line per token. The last line also has the whole text and the details.

    Only the first sequence is streamed.
    """

    content_type = "application/jsonlines"
    streams = True
    frame = staticmethod(line)

    def feed(self, delta: TextDelta) -> bytes:
        if delta.index:
            return b""
        output = self.outputs[0]
        output.feed(delta)
        if delta.finish_reason is None:
            return b"".join([self.frame(self._record(token)) for token in delta.tokens])
        *earlier, last = delta.tokens or (_NO_TOKEN,)
        details: schemas.LmiStreamDetails | UnsetType = UNSET
        if self.request.details:
            details = self._details(output, delta.finish_reason, len(output.tokens))
        elif self.truncated is not None:
            details = schemas.LmiStreamDetails(
                delta.finish_reason, truncated=self.truncated, continuation=self.continued_by
            )
        record = schemas.LmiRecord(self.token(last), self.generated_text(output), details)
        return b"".join([*(self.frame(self._record(token)) for token in earlier), self.frame(dumps(record))])

    def _record(self, token: Token) -> bytes:
        """Return the record of a token that is not the last one."""
        if token.special or token.logprob is None or not isfinite(token.logprob):
            return dumps(schemas.LmiRecord(self.token(token)))
        head, before_text, before_log_prob, tail = _PLAIN_RECORD
        return f"{head}{token.id}{before_text}{quote(token.text)}{before_log_prob}{token.logprob!r}{tail}".encode()

    def finish(self) -> bytes:
        return b""  # the last token's line ends the stream

    def error(self, error: LMIError) -> bytes:
        """Return the last line, with a placeholder token (id -1) and `finish_reason` "error"."""
        output = self.outputs[0]
        token = schemas.LmiToken(-1, "", -1, special_token=True, error_msg=str(error))
        if self.request.details:
            details = self._details(output, FinishReason.ERROR, len(output.tokens) + 1)
        else:
            details = schemas.LmiStreamDetails(FinishReason.ERROR)
        return self.frame(dumps(schemas.LmiRecord(token, output.text, details)))

    def _details(
        self, output: CompletionOutput, reason: FinishReason, generated_tokens: int
    ) -> schemas.LmiStreamDetails:
        return schemas.LmiStreamDetails(
            reason,
            generated_tokens,
            output.prompt,
            self.prefill(output),
            self.top_tokens(output),
            self.cut_by,
            self.continued_by,
        )


class SseFormatter(JsonLinesFormatter):
    """The same documents as server-sent events."""

    content_type = "text/event-stream"
    frame = staticmethod(event)


def dumps(value: object) -> bytes:
    """Encode structs with a space after each comma and colon, as Python's `json.dumps` does."""
    return msgspec.json.format(encode(value), indent=0)


_NO_TOKEN = Token(id=-1, text="")

_PLAIN_RECORD = re.split(r'1|"t"|2\.0', dumps(schemas.LmiRecord(schemas.LmiToken(1, "t", 2.0))).decode())
"""The output of `dumps` around the values of most tokens. Filling it in takes half as long as `dumps`."""
