r"""TGI's formats: compact JSON in TGI's key order, with logprobs written as 32-bit floats.

    document   {"generated_text":"Deep Learning is","details":{...}}
    array      [{"generated_text":"Deep Learning is","details":{...}}]
    stream     data: {"index":1,"token":{...},"generated_text":null,"details":null}\n\n

Sources: responses of the text-generation-inference 3.3 router (tools/conform/vectors has exact copies) and its OpenAPI
document.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import CollectingFormatter, CompletionOutput, encode, event
from formatters.tgi import schemas
from formatters.tgi.errors import error_document
from formatters.tgi.float32 import number
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta, Token


class TgiFormatter(CollectingFormatter):
    """Shared by TGI's formats: the most probable tokens and the details."""

    def top_tokens(self, token: Token) -> list[schemas.Token] | UnsetType:
        """Return the most probable tokens at this token's position, if the request asked for them."""
        count = self.request.top_n_tokens
        return [token_object(other) for other in token.top[:count]] if count else UNSET

    def facts(self, output: CompletionOutput, sample: int) -> dict[str, Any]:
        """Return the fields that all details have. `sample` is the index among the `best_of` sequences."""
        seed = self.request.sampling_params.for_sample(sample).seed
        return {"finish_reason": output.finish_reason, "generated_tokens": len(output.tokens), "seed": seed}


class TgiJsonFormatter(TgiFormatter):
    """`/generate`: one document at the end. With `best_of`, the sequence with the highest mean logprob comes first."""

    def ranked(self) -> list[tuple[int, CompletionOutput]]:
        """Return the sequences with their `best_of` index, the highest mean logprob first."""
        return sorted(enumerate(self.outputs), key=lambda item: item[1].mean_logprob, reverse=True)

    def finish(self) -> bytes:
        (sample, best), *others = self.ranked()
        document = schemas.GenerateResponse(self.generated_text(best), continuation=self.continued_by)
        if self.request.details:
            sequences = [
                schemas.BestOfSequence(generated_text=self.generated_text(output), **self._details(output, place))
                for place, output in others
            ]
            document.details = schemas.Details(**self._details(best, sample), best_of_sequences=sequences or UNSET)
        return encode(document)

    def _details(self, output: CompletionOutput, sample: int) -> dict[str, Any]:
        return {
            **self.facts(output, sample),
            "prefill": [
                schemas.PrefillToken(token.id, token.text, number(token.logprob)) for token in output.prompt_tokens
            ],
            "tokens": [token_object(token) for token in output.tokens],
            "top_tokens": list(map(self.top_tokens, output.tokens)) if self.request.top_n_tokens else UNSET,
        }


class TgiArrayFormatter(TgiJsonFormatter):
    """`/` and `/invocations`: the same document inside an array."""

    def finish(self) -> bytes:
        return b"[" + super().finish() + b"]"


class TgiSseFormatter(TgiFormatter):
    """One event per token. The last event also has the whole text and the details."""

    content_type = "text/event-stream"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        output = self.outputs[0]
        start, end = len(output.tokens), None
        output.feed(delta)
        tokens = delta.tokens
        if delta.finish_reason is not None:
            tokens = tokens or (_NO_TOKEN,)  # TGI's clients need a token in every event, even if the text ended without
            end = start + len(tokens)
        records = [
            self.record(token, index, output if index == end else None) for index, token in enumerate(tokens, start + 1)
        ]
        return b"".join([event(encode(record)) for record in records])

    def finish(self) -> bytes:
        return b""  # the last token's event ends the stream

    def error(self, error: LMIError) -> bytes:
        return event(error_document(error))

    def record(self, token: Token, index: int, complete: CompletionOutput | None) -> msgspec.Struct:
        """Return the event of token number `index`, of the last one with the complete output."""
        details = None
        if complete is not None and (self.request.details or self.continuation is not None):
            details = schemas.StreamDetails(
                **self.facts(complete, 0),
                input_length=self.prompt_tokens[0],
                truncated=self.cut_by,
                continuation=self.continued_by,
            )
        return schemas.StreamResponse(
            index=index,
            token=token_object(token),
            top_tokens=self.top_tokens(token),
            generated_text=None if complete is None else self.generated_text(complete),
            details=details,
        )


_NO_TOKEN = Token(id=0, text="", logprob=0.0, special=True)


def token_object(token: Token) -> schemas.Token:
    """Return a token as TGI writes it."""
    return schemas.Token(token.id, token.text, number(token.logprob), token.special)
