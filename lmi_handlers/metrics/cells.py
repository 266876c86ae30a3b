"""Metric values that survive their process: each process maps its own file of doubles into memory.

A process takes the first file in the directory that no living process has locked, and continues from its values. So a
killed worker loses nothing, its successor adds to the same values, and files do not pile up. The worker that serves
`/metrics` adds them up.

prometheus_client's multi-process mode leaves files behind for each worker that ever ran, cannot count a value several
times at once, and takes six times as long for each observation.
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
"""Bytes per double. Doubles are aligned, so readers never see half of one."""


class Cells:
    """The values of one process, continuing those of a dead process whose file it takes. Not thread-safe."""

    def __init__(self, directory: Path, catalogue: Catalogue) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        size = catalogue.size * _CELL
        self._descriptor = claim(directory, size)
        self._cells = memoryview(mmap.mmap(self._descriptor, size)).cast("d")
        for metric in catalogue.metrics:
            for cell in metric.cells if metric.kind == "gauge" else ():
                self._cells[cell] = 0.0

    def close(self) -> None:
        """Close the file. Values can still be changed, so that late ones do no harm."""
        os.close(self._descriptor)

    def add(self, counter: Metric, amount: float = 1.0, label_value: str = "") -> None:
        """Increase the counter's series for `label_value`."""
        self._cells[counter.first + counter.label_values.index(label_value)] += amount

    def set(self, gauge: Metric, value: float, label_value: str = "") -> None:
        self._cells[gauge.first + gauge.label_values.index(label_value)] = value

    def observe(self, histogram: Metric, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        cells, first = self._cells, histogram.first
        cells[first + bisect_left(histogram.buckets, value)] += times
        cells[first + len(histogram.buckets) + 1] += value * times


def totals(directory: Path, catalogue: Catalogue) -> list[float]:
    """Add up the cells of all processes. Gauges of dead processes are left out."""
    size = catalogue.size * _CELL
    gauges = [cell for metric in catalogue.metrics if metric.kind == "gauge" for cell in metric.cells]
    sums = [0.0] * catalogue.size
    for path in directory.iterdir():
        with path.open("rb") as file:
            content = file.read()
            orphaned = _lock(file.fileno(), fcntl.LOCK_SH)
        if len(content) < size:
            continue  # just created, not yet filled
        values = array.array("d", content)
        if orphaned:
            for cell in gauges:
                values[cell] = 0.0
        sums = [total + value for total, value in zip(sums, values, strict=True)]
    return sums


def claim(directory: Path, size: int) -> int:
    """Lock the first free file for the life of this process, and return its descriptor. The file has `size` bytes."""
    number = 0
    while True:
        descriptor = os.open(directory / str(number), os.O_RDWR | os.O_CREAT, 0o600)
        if _lock(descriptor, fcntl.LOCK_EX):
            if os.fstat(descriptor).st_size < size:
                os.write(descriptor, bytes(size))  # a full disk fails here, not with a signal later
            return descriptor
        os.close(descriptor)
        number += 1


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
