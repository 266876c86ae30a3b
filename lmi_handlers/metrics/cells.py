"""Metric values that survive their process: each process maps its own file of doubles into memory.

A process takes the first file in the directory that no living process has locked, and continues from its values. So a
killed worker loses nothing of it, its successor adds to the same values, and files do not pile up. The worker that serves
`/metrics` adds them up.

prometheus_client's multi-process mode leaves files behind for each worker that ever ran, cannot count a value several
times at once, and takes six times as long for each observation.
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import mmap
import os
from bisect import bisect_left
from pathlib import Path

from lmi_handlers.metrics.series import Catalogue, Metric

logger = logging.getLogger(__name__)

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

    def observe(self, value: float, *histograms: Metric, times: int = 1) -> None:
        """Count a value in each histogram, `times` times."""
        cells = self._cells
        for histogram in histograms:
            cells[histogram.first + bisect_left(histogram.buckets, value)] += times
            cells[histogram.first + len(histogram.buckets) + 1] += value * times


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
    """Lock the first free file for the life of this process, and return its descriptor. The file has `size` bytes.

    If the disk is full, the file is one in memory, which no other process reads: a web worker that cannot start would end
    the server.
    """
    try:
        return _claim(directory, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not hasattr(os, "memfd_create"):  # Linux
            raise
        logger.warning("no room for a file: this process counts for itself", extra={"path": str(directory)})
        descriptor = os.memfd_create("lmi-cells")
        os.truncate(descriptor, size)
        return descriptor


def _claim(directory: Path, size: int) -> int:
    number = 0
    while True:
        descriptor = os.open(directory / str(number), os.O_RDWR | os.O_CREAT, 0o600)
        if _lock(descriptor, fcntl.LOCK_EX):
            if os.fstat(descriptor).st_size < size and not _fill(descriptor, size):
                os.close(descriptor)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
            return descriptor
        os.close(descriptor)
        number += 1


def _fill(descriptor: int, size: int) -> bool:
    """Write the whole file, so that a full disk fails here and not with a signal later. Tell whether it had room."""
    try:
        return os.write(descriptor, bytes(size)) == size
    except OSError:
        return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
