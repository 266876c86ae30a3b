"""The engine process's own metrics."""

from __future__ import annotations

from pathlib import Path

from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.metrics import catalogue
from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.cells import Cells
from lmi_handlers.metrics.engine_info import EngineInfo, EngineInfoFile


class EngineMetrics:
    """The metrics of one of the `replicas` of an engine. `directory` holds the values of all processes of this server.

    `/metrics` adds up the values of all processes, so each replica reports its part of a share.
    """

    def __init__(self, directory: Path, *, replica: int = 0, replicas: int = 1) -> None:
        self._cells = Cells(directory, CATALOGUE)
        self._info = EngineInfoFile(directory, replica)
        self._counted = EngineCounters()
        self._busy_time = 0.0
        self._shared_tokens = 0
        self._replica = replica
        self._replicas = replicas

    def set_load(self, *, running: int, waiting: int, kv_cache_usage: float) -> None:
        """Set the number of running and waiting sequences, and the share of the cache in use."""
        for gauge in (catalogue.KV_CACHE_USAGE, catalogue.GPU_CACHE_USAGE):
            self._cells.set(gauge, kv_cache_usage / self._replicas)
        for gauge in (catalogue.RUNNING, catalogue.BATCH_SIZE):
            self._cells.set(gauge, running)
        for gauge in (catalogue.WAITING, catalogue.QUEUE_SIZE):
            self._cells.set(gauge, waiting)

    def set_info(self, info: EngineInfo) -> None:
        """Set what the labels of vLLM's series say."""
        self._info.write(info)

    def count(self, counters: EngineCounters) -> None:
        """Add what the engine has counted since the last call."""
        for field, metric in catalogue.ENGINE_COUNTERS.items():
            self._cells.add(metric, getattr(counters, field) - getattr(self._counted, field))
        self._counted = counters

    def set_busy_time(self, seconds: float) -> None:
        """Add the time that the engine's steps have taken since the last call. `seconds` is the time since it was loaded."""
        self._cells.add(catalogue.BUSY_SECONDS, seconds - self._busy_time)
        self._busy_time = seconds

    def count_shared(self, tokens: int) -> None:
        """Add the tokens that were generated since the last call for answers that several requests may get.

        `tokens` is the total. A web worker does not know which of these others count.
        """
        self._cells.add(catalogue.GENERATION_TOKENS, tokens - self._shared_tokens)
        self._shared_tokens = tokens

    def set_download(self, done: int, total: int) -> None:
        """Set how many bytes of the model have been downloaded, and how many it has."""
        self._cells.set(catalogue.DOWNLOADED_BYTES, done)
        self._cells.set(catalogue.DOWNLOAD_SIZE, total)

    def set_load_seconds(self, phase: LoadPhase, seconds: float) -> None:
        """Set how long a phase of the load has taken. Only the first replica's counts."""
        if self._replica == 0:
            self._cells.set(catalogue.LOAD_SECONDS, seconds, phase.value)
