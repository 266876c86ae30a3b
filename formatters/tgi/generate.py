r"""TGI's formats: compact JSON in TGI's key order, with logprobs written as 32-bit floats.

    document   {"generated_text":"Deep Learning is","details":{...}}
    array      [{"generated_text":"Deep Learning is","details":{...}}]
    stream     data: {"index":1,"token":{...},"generated_text":null,"details":null}\n\n

Sources: responses of the text-generation-inference 3.3 router (tests/data/tgi has exact copies) and its OpenAPI
document.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import CompletionOutput, Formatter, encode, event
from formatters.tgi import responses
from formatters.tgi.errors import error_document
from formatters.tgi.float32 import number
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class TgiFormatter(Formatter):
    """Shared by TGI's formats: the token objects, the seed, and the text so far."""

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> None:
        super().__init__(request, prompts)
        self._outputs = [CompletionOutput(prompts[0].text) for _ in range(request.sampling_params.n)]

    def top_tokens(self, token: Token) -> list[responses.Token] | UnsetType:
        """Return the most probable tokens at this token's position, if the request asked for them."""
        count = self.request.top_n_tokens
        return [token_object(other) for other in token.top[:count]] if count else UNSET

    def generated_text(self, output: CompletionOutput) -> str:
        """Return the text. `return_full_text` puts the whole prompt in front."""
        return output.prompt + output.text if self.request.return_full_text else output.text

    def facts(self, output: CompletionOutput, sample: int) -> dict[str, Any]:
        """Return the fields that all details have. `sample` is the index among the `best_of` sequences."""
        seed = self.request.sampling_params.for_sample(sample).seed
        return {"finish_reason": output.finish_reason, "generated_tokens": len(output.tokens), "seed": seed}


class TgiJsonFormatter(TgiFormatter):
    """`/generate`: one document at the end. With `best_of`, the sequence with the highest mean logprob comes first."""

    content_type = "application/json"
    streams = False

    def feed(self, delta: TextDelta) -> bytes:
        self._outputs[delta.index].feed(delta)
        return b""

    def ranked(self) -> list[tuple[int, CompletionOutput]]:
        """Return the sequences with their `best_of` index, the highest mean logprob first."""
        return sorted(enumerate(self._outputs), key=lambda item: item[1].mean_logprob, reverse=True)

    def finish(self) -> bytes:
        (sample, best), *others = self.ranked()
        document = responses.GenerateResponse(self.generated_text(best))
        if self.request.details:
            sequences = [
                responses.BestOfSequence(generated_text=self.generated_text(output), **self._details(output, place))
                for place, output in others
            ]
            document.details = responses.Details(**self._details(best, sample), best_of_sequences=sequences or UNSET)
        return encode(document)

    def _details(self, output: CompletionOutput, sample: int) -> dict[str, Any]:
        return {
            **self.facts(output, sample),
            "prefill": [
                responses.PrefillToken(token.id, token.text, number(token.logprob)) for token in output.prompt_tokens
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
        output = self._outputs[0]
        index = len(output.tokens)
        output.feed(delta)
        if delta.finish_reason is None:
            records = [self.record(token, place) for place, token in enumerate(delta.tokens, index + 1)]
        else:
            # TGI's clients need a token in every event, even if the text ended without one.
            *tokens, last = delta.tokens or (_NO_TOKEN,)
            records = [self.record(token, place) for place, token in enumerate(tokens, index + 1)]
            records.append(self.record(last, index + len(tokens) + 1, output))
        return b"".join([event(encode(record)) for record in records])

    def finish(self) -> bytes:
        return b""  # the last token's event ends the stream

    def error(self, error: LMIError) -> bytes:
        return event(error_document(error))

    def record(self, token: Token, index: int, complete: CompletionOutput | None = None) -> msgspec.Struct:
        """Return the event of token number `index`, of the last one with the complete output."""
        details = None
        if complete is not None and self.request.details:
            details = responses.StreamDetails(**self.facts(complete, 0), input_length=self.prompt_tokens[0])
        return responses.StreamResponse(
            index=index,
            token=token_object(token),
            top_tokens=self.top_tokens(token),
            generated_text=None if complete is None else self.generated_text(complete),
            details=details,
        )


_NO_TOKEN = Token(id=0, text="", logprob=0.0, special=True)


def token_object(token: Token) -> responses.Token:
    """Return a token as TGI writes it."""
    return responses.Token(token.id, token.text, number(token.logprob), token.special)
