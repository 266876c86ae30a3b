r"""MindIE's formats.

They differ from TGI's: an object instead of an array, events without an index, MindIE's key order.

    document   {"details":{...},"generated_text":"am a Frenchman"}
    stream     data: {"token":{...},"generated_text":null,"details":null}\n\n

Source: MindIE's documentation of its text and streaming inference interface. Its examples are in the tests. They have
null for `logprob` and `special`, but this server sends the real values.
"""

from __future__ import annotations

import msgspec

from formatters.base import CompletionOutput, encode
from formatters.mindie import schemas
from formatters.tgi.float32 import number
from formatters.tgi.generate import TgiJsonFormatter, TgiSseFormatter, token_object
from lmi_handlers.core.outputs import Token


class MindieJsonFormatter(TgiJsonFormatter):
    """One document at the end. Unlike in events, its keys and its tokens' keys are in alphabetical order."""

    def finish(self) -> bytes:
        sample, best = self.ranked()[0]
        document = schemas.MindieResponse(generated_text=self.generated_text(best), continuation=self.continued_by)
        if self.request.details:
            document.details = schemas.MindieDetails(
                **self.facts(best, sample),
                prefill=[
                    schemas.MindiePrefillToken(token.id, number(token.logprob), token.text)
                    for token in best.prompt_tokens
                ],
                tokens=[
                    schemas.MindieToken(token.id, number(token.logprob), token.special, token.text)
                    for token in best.tokens
                ],
            )
        return encode(document)


class MindieSseFormatter(TgiSseFormatter):
    """One event per token, without its number. The last event also has the whole text and the details."""

    def record(self, token: Token, index: int, complete: CompletionOutput | None) -> msgspec.Struct:  # noqa: ARG002
        details = None
        if complete is not None and (self.request.details or self.continuation is not None):
            details = schemas.MindieStreamDetails(
                **self.facts(complete, 0), truncated=self.cut_by, continuation=self.continued_by
            )
        return schemas.MindieStreamResponse(
            token_object(token), None if complete is None else self.generated_text(complete), details
        )
