"""The engine process's own metrics."""

from __future__ import annotations

from pathlib import Path

from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.metrics import catalogue
from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.cells import Cells


class EngineMetrics:
    """The metrics of the engine process. `directory` holds the values of all processes of this server."""

    def __init__(self, directory: Path) -> None:
        self._cells = Cells(directory, CATALOGUE)
        self._counted = EngineCounters()

    def set_load(self, *, running: int, waiting: int, kv_cache_usage: float) -> None:
        """Set the number of running and waiting sequences, and the share of the cache in use."""
        self._cells.set(catalogue.KV_CACHE_USAGE, kv_cache_usage)
        for gauge in (catalogue.RUNNING, catalogue.BATCH_SIZE):
            self._cells.set(gauge, running)
        for gauge in (catalogue.WAITING, catalogue.QUEUE_SIZE):
            self._cells.set(gauge, waiting)

    def count(self, counters: EngineCounters) -> None:
        """Add what the engine has counted since the last call."""
        for field, metric in catalogue.ENGINE_COUNTERS.items():
            self._cells.add(metric, getattr(counters, field) - getattr(self._counted, field))
        self._counted = counters

    def set_load_seconds(self, phase: LoadPhase, seconds: float) -> None:
        """Set how long a phase of the load has taken."""
        self._cells.set(catalogue.LOAD_SECONDS, seconds, phase.value)
