"""Publishes the metrics of all processes that serve a model. Runs in the one that supervises them, on its own threads."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.cells import totals
from lmi_handlers.telemetry.emf import EmfLines
from lmi_handlers.telemetry.interval import Interval
from lmi_handlers.telemetry.settings import TelemetrySettings

_CLOSING = 1.5
"""Seconds that the last metrics have to be published. The arbiter waits a little longer."""

Publish = Callable[[Sequence[float]], None]
"""Publishes the values of all cells."""

logger = logging.getLogger(__name__)


class Publisher:
    """Calls `publish` with the cells in `directory`, every `period` seconds and at the end."""

    def __init__(self, directory: Path, publish: Publish, period: float) -> None:
        self._directory = directory
        self._publish = publish
        self._period = period
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-publisher", daemon=True)

    def start(self) -> None:
        """Start publishing."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._thread.start()

    def close(self, deadline: float) -> None:
        """Publish once more, and wait until that has happened, but not past the monotonic time `deadline`."""
        self._ending.set()
        if self._thread.is_alive():  # not if it was never started
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        ended = False
        due = time.monotonic()
        while not ended:
            due = max(due + self._period, time.monotonic())
            ended = self._ending.wait(due - time.monotonic())
            try:
                self._publish(totals(self._directory, CATALOGUE))
            except Exception as error:  # noqa: BLE001  the next period may succeed
                logger.warning("metrics were not published", extra={"cause": f"{type(error).__name__}: {error}"})


def metrics_publishers(settings: TelemetrySettings, directory: Path, model_name: str) -> list[Publisher]:
    """Return the publishers that the settings ask for, of the metrics in `directory`."""
    publishers = []
    if settings.emf:
        lines = EmfLines(settings.emf_namespace, model_name, settings.emf_dimensions)
        publishers.append(Publisher(directory, _written(lines), settings.emf_period))
    if settings.otlp_metrics:
        from lmi_handlers.telemetry.otlp_metrics import otlp_sender  # imports the SDK

        publishers.append(Publisher(directory, otlp_sender(model_name, settings.temporality), settings.otlp_period))
    return publishers


def close_publishers(publishers: Iterable[Publisher]) -> None:
    """Publish once more, and wait a moment until that has happened."""
    deadline = time.monotonic() + _CLOSING
    for publisher in publishers:
        publisher.close(deadline)


def _written(lines: EmfLines) -> Publish:
    """Return a function that writes lines to standard output, each with a single write."""
    before: Sequence[float] = [0.0] * CATALOGUE.size

    def publish(cells: Sequence[float]) -> None:
        nonlocal before
        os.write(sys.stdout.fileno(), lines.line(Interval(before, cells), time.time_ns() // 1_000_000))
        before = cells  # a period whose line could not be written belongs to the next one

    return publish
