"""The usage by each API key and each tenant: counters with a label whose values are only known at run time.

Each label has a number, and all processes of the server the same one: a file has the labels in the order in which they
were first used. So the values are cells like those of all other metrics.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics.cells import Cells, totals
from lmi_handlers.metrics.series import Catalogue, Metric, sample

MAX_LABELS = 256
"""Maximum number of labels with series of their own. All others together have one more."""

OTHERS = "other"

_NUMBERS = tuple(map(str, range(MAX_LABELS + 1)))


class UsageSeries:
    """The counters called `<prefix>_..`, with the label `label`. `whose` describes the requests with the same value of it."""

    def __init__(self, prefix: str, label: str, whose: str) -> None:
        self.label = label
        self.prefix = prefix
        self.catalogue = Catalogue()
        self.requests = self._counter("requests", "requests", f"Requests that have ended, by {whose}.")
        self._values: tuple[tuple[Metric, Callable[[Usage], float]], ...] = (
            (self.requests, lambda _: 1),
            (
                self._counter("prompt_tokens", "tokens", "Prompt tokens of these requests."),
                lambda usage: usage.prompt_tokens,
            ),
            (
                self._counter("cached_tokens", "tokens", "Those of them that the engine found in its prefix cache."),
                lambda usage: usage.cached_tokens,
            ),
            (
                self._counter("generated_tokens", "tokens", "Tokens that were generated for them."),
                lambda usage: usage.generated_tokens,
            ),
            (
                self._counter("queue_seconds", "seconds", "Seconds that they waited in the engine's queue."),
                lambda usage: usage.queue_time or 0.0,
            ),
            (
                self._counter("engine_seconds", "seconds", "Their engine seconds."),
                lambda usage: usage.engine_time or 0.0,
            ),
            (
                self._counter("kv_block_seconds", "seconds", "Their KV block seconds, measured or estimated."),
                lambda usage: usage.kv_block_seconds,
            ),
        )

    def add(self, cells: Cells, usage: Usage, number: str) -> None:
        """Count a request that has ended, under the value of the label that has this number."""
        charged = usage.charged()
        for metric, value in self._values:
            cells.add(metric, value(charged), number)

    def _counter(self, name: str, unit: str, documentation: str) -> Metric:
        return self.catalogue.counter(f"{self.prefix}_{name}_total", unit, documentation, self.label, _NUMBERS)


KEYS = UsageSeries("lmi_key", "key_label", "the label of their API key")
TENANTS = UsageSeries("lmi_tenant", "tenant", "the tenant that they name")

UsageByLabel = tuple[Sequence[str], Sequence[float]]
"""Values of the label, and the cells of the catalogue."""


class LabelMetrics:
    """Counts `series` for one worker. Not thread-safe. `directory` is shared by all, and made when there is a label."""

    def __init__(self, series: UsageSeries, directory: Path) -> None:
        self._series = series
        self._directory = directory
        self._cells: Cells | None = None
        self._numbers: dict[str, str] = {}

    def ended(self, usage: Usage, label: str) -> None:
        """Count a request that has ended."""
        if self._cells is None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._cells = Cells(self._directory / "cells", self._series.catalogue)
        self._series.add(self._cells, usage, self._numbers.get(label) or self._number(label))

    def values(self) -> UsageByLabel | None:
        """Return the values of all workers, None before any request had a label."""
        if not (self._directory / "cells").is_dir():
            return None
        return self._labels(), totals(self._directory / "cells", self._series.catalogue)

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


def exposition(series: UsageSeries, models: Sequence[tuple[Mapping[str, str], UsageByLabel | None]]) -> str:
    """Return the text of these series. `models` has the labels that name a model, and what was used of it."""
    lines: list[str] = []
    known = [(labels, *used) for labels, used in models if used is not None]
    for metric in series.catalogue.metrics if known else ():
        lines += metric.head
        for labels, names, cells in known:
            shown = list(enumerate(names))
            if cells[series.requests.first + MAX_LABELS]:
                shown.append((MAX_LABELS, OTHERS))
            for number, name in shown:
                lines.append(sample(metric.name, {**labels, series.label: name}, cells[metric.first + number]))
    return "".join(f"{line}\n" for line in lines)


def series_dir(metrics_dir: Path, series: UsageSeries) -> Path:
    """Return the directory beside that of the other metrics."""
    return metrics_dir.with_name(f"{metrics_dir.name}-by-{series.label}")
