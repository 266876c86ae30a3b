"""What the peers that run in a process without HTTP have in common: the lines of JSON that `servers.Responder` reads."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

Generate = Callable[[list[list[int]], int], int]
"""Generates that many tokens, greedily, for each of the prompts (token ids). Returns the number of all new tokens."""


@dataclass(frozen=True)
class Answers:
    """Answers questions such as `{"prompts": [[1, 2]], "new_tokens": 64}` with `{"seconds": 1.5, "tokens": 64}`."""

    stdout: TextIO

    @classmethod
    def on_standard_output(cls) -> Answers:
        """Take over standard output. What libraries print there goes to standard error from now on."""
        stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(stdout)

    def run(self, hello: str, generate: Generate) -> None:
        """Print `hello`, a few words about the peer, then answer until standard input ends."""
        self._print(hello)
        for line in sys.stdin:
            question = json.loads(line)
            started = time.perf_counter()
            tokens = generate(question["prompts"], question["new_tokens"])
            self._print({"seconds": time.perf_counter() - started, "tokens": tokens})

    def _print(self, answer: object) -> None:
        print(json.dumps(answer), file=self.stdout, flush=True)
