"""A process that compiles grammars before the engine does: one that takes all memory, or for ever, takes nobody along.

A schema of forty characters is enough for that (`{"type": "array", "minItems": 1000000000}`), and a library's thread can
be neither stopped nor limited. Lines of JSON both ways: a `Vocabulary`, answered by null, then each `StructuredOutputs`,
answered by a `Verdict`.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import msgspec

from backends.transformers.grammar import Grammar, Vocabulary, grammar_text
from lmi_handlers.errors import InvalidRequest
from lmi_handlers.sampling_params import StructuredOutputs

MEMORY_LIMIT = 2**30
"""Bytes that a grammar may take."""

NICENESS = 10
"""Leaves a tenth of a core where the engine wants them all."""


class Verdict(msgspec.Struct, omit_defaults=True):
    """The grammar's `text`, or what is wrong with it."""

    text: str = ""
    error: str | None = None


def main() -> None:
    """Serve on the standard streams until there is no more to read."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = msgspec.json.decode(sys.stdin.buffer.readline(), type=Vocabulary)
    tokenizer = vocabulary.load()
    if sys.platform == "linux":  # elsewhere no kernel heeds it
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_LIMIT
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _answer(None)
    for line in sys.stdin.buffer:
        wanted = msgspec.json.decode(line, type=StructuredOutputs)
        try:
            text = grammar_text(wanted)
            Grammar(tokenizer, text, vocabulary.vocab_size)
        except InvalidRequest as error:
            _answer(Verdict(error=error.message))
        else:
            _answer(Verdict(text))


def _answer(answer: Verdict | None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
