"""The usage by each API key: counters with the key's label, which is only known at run time.

Each label has a number, and all processes of the server the same one: a file has the labels in the order in which they
were first used. So the values are cells like those of all other metrics.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics.cells import Cells, totals
from lmi_handlers.metrics.series import Catalogue, sample

MAX_LABELS = 256
"""Maximum number of labels with series of their own. All others together have one more."""

OTHERS = "other"
LABEL = "key_label"

CATALOGUE = Catalogue()
_NUMBERS = tuple(map(str, range(MAX_LABELS + 1)))
REQUESTS = CATALOGUE.counter(
    "lmi_key_requests_total", "requests", "Requests that have ended, by the label of their API key.", LABEL, _NUMBERS
)
PROMPT_TOKENS = CATALOGUE.counter(
    "lmi_key_prompt_tokens_total", "tokens", "Prompt tokens of these requests.", LABEL, _NUMBERS
)
GENERATED_TOKENS = CATALOGUE.counter(
    "lmi_key_generated_tokens_total", "tokens", "Tokens that were generated for them.", LABEL, _NUMBERS
)

UsageByKey = tuple[Sequence[str], Sequence[float]]
"""Labels, and the cells of `CATALOGUE`."""


class KeyMetrics:
    """Counts for one worker. Not thread-safe. `directory` is shared by all workers, and made when there is a label."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cells: Cells | None = None
        self._numbers: dict[str, str] = {}

    def ended(self, usage: Usage) -> None:
        """Count a request with an API key that has ended."""
        if self._cells is None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._cells = Cells(self._directory / "cells", CATALOGUE)
        number = self._numbers.get(usage.key_label) or self._number(usage.key_label)
        self._cells.add(REQUESTS, 1, number)
        self._cells.add(PROMPT_TOKENS, usage.prompt_tokens, number)
        self._cells.add(GENERATED_TOKENS, usage.generated_tokens, number)

    def values(self) -> UsageByKey | None:
        """Return the values of all workers, None before any request had a key."""
        if not (self._directory / "cells").is_dir():
            return None
        return self._labels(), totals(self._directory / "cells", CATALOGUE)

    def close(self) -> None:
        """Stop counting."""
        if self._cells is not None:
            self._cells.close()

    @property
    def _file(self) -> Path:
        return self._directory / "labels"

    def _labels(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def _number(self, label: str) -> str:
        """Return the number of a label for all processes: its place in the file, to which it is added if there is room."""
        with self._file.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            labels = self._labels()
            if label not in (*labels, OTHERS) and len(labels) < MAX_LABELS:
                labels.append(label)
                file.write(f"{label}\n")
                file.flush()
        number = str(labels.index(label) if label in labels else MAX_LABELS)
        if len(self._numbers) < MAX_LABELS:
            self._numbers[label] = number
        return number


def exposition(models: Sequence[tuple[Mapping[str, str], UsageByKey | None]]) -> str:
    """Return the text of all series. `models` has the labels that name a model, and what was used of it."""
    lines: list[str] = []
    known = [(labels, *used) for labels, used in models if used is not None]
    for metric in CATALOGUE.metrics if known else ():
        lines += metric.head
        for labels, names, cells in known:
            for number, name in _shown(names, cells):
                lines.append(sample(metric.name, {**labels, LABEL: name}, cells[metric.first + number]))
    return "".join(f"{line}\n" for line in lines)


def _shown(names: Sequence[str], cells: Sequence[float]) -> Iterator[tuple[int, str]]:
    yield from enumerate(names)
    if cells[REQUESTS.first + MAX_LABELS]:
        yield MAX_LABELS, OTHERS


def key_metrics_dir(metrics_dir: Path) -> Path:
    """Return the directory beside that of the other metrics."""
    return metrics_dir.with_name(f"{metrics_dir.name}-of-keys")
