"""Compiles grammars in a separate process before the engine does, because some exhaust memory or never finish.

A schema of forty characters is enough for that: `{"type": "array", "minItems": 1000000000}`.

A grammar that compiles may still get slower with every token, for example `root ::= root root | "a"`. So the trial also
generates a few tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec
import numpy as np

from backends.grammar import GrammarMatcher, Vocabulary, grammar_text
from backends.limited_process import serve
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

MEMORY_LIMIT = 2**29
"""Maximum memory for a grammar in bytes."""

_TOKENS = 128
_SECONDS = 0.5
"""Maximum CPU time for all trial tokens. A model takes about as long for them on a CPU, and much less on a GPU."""


class Verdict(msgspec.Struct, omit_defaults=True):
    """The grammar's `text` and the CPU seconds that compiling took, or the `error`."""

    text: str = ""
    seconds: float = 0.0
    error: str | None = None


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """Return a function from an encoded `StructuredOutputs` to an encoded `Verdict`. `setup` is a `Vocabulary`."""
    vocabulary = msgspec.json.decode(setup, type=Vocabulary)
    tokenizer = vocabulary.load()

    def answer(question: bytes) -> bytes:
        wanted = msgspec.json.decode(question, type=StructuredOutputs)
        try:
            text = grammar_text(wanted)
            started = time.process_time()
            grammar = GrammarMatcher(tokenizer, text, vocabulary.vocab_size)
            seconds = time.process_time() - started
            _follow(grammar, vocabulary.eos_token_ids)
        except InvalidRequest as error:
            return msgspec.json.encode(Verdict(error=error.message))
        return msgspec.json.encode(Verdict(text, seconds))

    return answer


def _follow(grammar: GrammarMatcher, eos_token_ids: tuple[int, ...]) -> None:
    """Generate some allowed tokens, the same ones each time. Raises `InvalidRequest` if that takes too much."""
    rng = random.Random(0)  # noqa: S311  nothing secret
    started = time.process_time()
    for _ in range(_TOKENS):
        allowed = grammar.allowed()
        allowed[list(eos_token_ids)] = False
        token_ids = np.flatnonzero(allowed)
        if grammar.ended or not len(token_ids):
            return
        grammar.advance(int(token_ids[rng.randrange(len(token_ids))]))
        if grammar.error is not None:
            raise InvalidRequest(f"is too expensive per token: {grammar.error}", field="structured_outputs")
        if time.process_time() - started > _SECONDS:
            raise InvalidRequest("takes too long per token; is it ambiguous?", field="structured_outputs")


if __name__ == "__main__":
    serve(prepare, memory=MEMORY_LIMIT)
