"""The probe: short sequences that a runner computes before it is used, to compare its logits with the model's own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from backends.paged.runner import Runner
from backends.paged.sequence import Sequence, SequenceChunk

Part = tuple[int, int, int, int]
"""Sequence, first token, the one after the last, and for how many of the last tokens logits are asked for."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences of fixed tokens, with the block table of each, and what is computed of them in each step.

    A runner that serves requests is asked for the logits of the last token only, or for those of some tokens, or for
    none in the middle of a prompt. A probe that always asks for all would miss a model that ignores which are wanted.
    """

    lengths: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Part, ...], ...]

    def token_ids(self, vocab_size: int) -> list[list[int]]:
        """Return the tokens of each sequence."""
        return [[(31 * i + 17 * n + 7) % vocab_size for i in range(length)] for n, length in enumerate(self.lengths)]

    def run(self, runner: Runner) -> tuple[list[int], list[Any]]:
        """Return the positions whose logits were asked for, and these logits as the runner returned them, per step.

        A position counts the tokens of all sequences, one sequence after the other. Raises `ValueError` if the runner
        returns another number of rows, and whatever the model raises.
        """
        texts = self.token_ids(runner.vocab_size)
        sequences = [Sequence("probe", [], len(text)) for text in texts]
        positions: list[int] = []
        logits: list[Any] = []
        for sequence, table in zip(sequences, self.tables, strict=True):
            sequence.blocks = list(table)
        for step in self.steps:
            chunks = []
            for number, start, stop, num_logits in step:
                sequence = sequences[number]
                sequence.token_ids = texts[number][:stop]
                if start == 0:
                    sequence.prompt_len = stop
                chunks.append(SequenceChunk(sequence, start, texts[number][start:stop], num_logits))
                first = sum(self.lengths[:number])
                positions += range(first + stop - num_logits, first + stop)
            rows = runner.forward(chunks)
            wanted = sum(chunk.num_logits for chunk in chunks)
            if rows.shape[0] != wanted:
                raise ValueError(f"it returned {rows.shape[0]} rows of logits where {wanted} were asked for")
            logits.append(copy.deepcopy(rows))  # the runner may overwrite them in the next step
        for sequence in sequences:
            runner.release(sequence)
        return positions, logits
