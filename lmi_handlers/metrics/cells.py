"""Numbers that outlive the process that counts them: a file of doubles for each process, mapped into its memory.

A process takes the first file of the directory that no living process holds, and counts on from what is there. So a worker
that is killed has lost nothing, its successor adds to its numbers, and files do not pile up. Whoever is asked for metrics adds
them up.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
from bisect import bisect_left
from pathlib import Path

from lmi_handlers.metrics.series import Catalogue, Metric

_CELL = 8
"""Bytes of a double. Aligned as it is, nobody sees half of one."""


class Cells:
    """The numbers of one process, at first those of the dead one whose file it takes. For one thread at a time."""

    def __init__(self, directory: Path, catalogue: Catalogue) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        size = catalogue.size * _CELL
        self._descriptor = _claim(directory, size)
        self._cells = memoryview(mmap.mmap(self._descriptor, size)).cast("d")
        for metric in catalogue.metrics:
            if metric.kind == "gauge":
                self.set(metric, 0.0)

    def add(self, counter: Metric, amount: float = 1.0, label_value: str = "") -> None:
        """Raise a counter; `label_value` says which of its series."""
        self._cells[counter.first + counter.label_values.index(label_value)] += amount

    def set(self, gauge: Metric, value: float) -> None:
        """Say how it is now."""
        self._cells[gauge.first] = value

    def observe(self, histogram: Metric, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        cells, first = self._cells, histogram.first
        cells[first + bisect_left(histogram.buckets, value)] += times
        cells[first + len(histogram.buckets) + 1] += value * times


def totals(directory: Path, catalogue: Catalogue) -> list[float]:
    """Add up the cells of all processes; gauges of the living only."""
    size = catalogue.size * _CELL
    gauges = [metric.first for metric in catalogue.metrics if metric.kind == "gauge"]
    sums = [0.0] * catalogue.size
    for path in directory.iterdir():
        with path.open("rb") as file:
            content = file.read()
            orphaned = _lock(file.fileno(), fcntl.LOCK_SH)
        if len(content) < size:
            continue  # claimed this very moment
        values = array.array("d", content)
        if orphaned:
            for position in gauges:
                values[position] = 0.0
        sums = [total + value for total, value in zip(sums, values, strict=True)]
    return sums


def _claim(directory: Path, size: int) -> int:
    """Lock the first file that nobody holds, for as long as this process lives. It has `size` bytes."""
    number = 0
    while True:
        descriptor = os.open(directory / str(number), os.O_RDWR | os.O_CREAT, 0o600)
        if _lock(descriptor, fcntl.LOCK_EX):
            if os.fstat(descriptor).st_size < size:
                os.write(descriptor, bytes(size))  # a full disk is an error now, and not a signal at the first number
            return descriptor
        os.close(descriptor)
        number += 1


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
