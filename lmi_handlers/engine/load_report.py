"""Times the phases of a load, and tells the log, the web workers, the supervisor and `/metrics` about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.engine.heartbeat import Heartbeat
from lmi_handlers.engine.messages import Loading
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.model_files.model_cache import in_gb

_LOG_INTERVAL = 5.0

logger = logging.getLogger(__name__)


class LoadReport:
    """The `report` that `Backend.load` is called with.

    A call with a `LoadPhase` ends the current phase and begins that one. Any other text describes the current phase.
    `started` is when the load began, on the monotonic clock, which all processes of a machine share. Web workers are told
    about the text bundle in `bundle` once it is set.
    """

    def __init__(
        self, started: float, announce: Callable[[Loading], None], metrics: EngineMetrics, heartbeat: Heartbeat
    ) -> None:
        self._started = self._since = started
        self._announce = announce
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._phase = LoadPhase.STARTING
        self._seconds = dict.fromkeys(LoadPhase, 0.0)
        self._detail = ""
        self._download: tuple[float, int, float, int] | None = None
        """When the download began, with how many bytes; when it was logged last; how many bytes there were last."""
        self.bundle: Path | None = None
        self._tell(self._phase.value)

    def __call__(self, text: str) -> None:
        try:
            phase = LoadPhase(text)
        except ValueError:
            logger.info("loading", extra={"phase": self._phase.value, "detail": text})
            self._detail, self._download = text, None
            self._tell(f"{self._phase.value}: {text}")
            return
        if phase is not self._phase:
            self._end_phase()
            if LoadPhase.RESOURCES in (phase, self._phase):
                self._heartbeat.arrive()
            self._phase = phase
            self._heartbeat.load(phase)
        self._tell(phase.value)

    def download(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of the model are there, after a call with what is done with them.

        While they grow, the load does not time out.
        """
        now = time.monotonic()
        started, at_start, logged, before = self._download or (now, done, now, done)
        if done != before:
            self._heartbeat.arrive()
        self._metrics.set_download(done, total)
        rate = max(0, done - at_start) / max(now - started, 1e-3)
        share = f"{in_gb(done)} of {in_gb(total)}, {in_gb(rate)}/s"
        self._tell(f"{self._phase.value}: {self._detail}: {share}")
        if now - logged >= _LOG_INTERVAL or done == total:
            logger.info("downloading", extra={"bytes": done, "of": total, "bytes_per_second": round(rate)})
            logged = now
        self._download = started, at_start, logged, done

    def finish(self) -> float:
        """End the last phase, and return how many seconds the whole load has taken."""
        self._end_phase()
        return self._since - self._started

    def _tell(self, text: str) -> None:
        self._announce(Loading(text, self._since, None if self.bundle is None else str(self.bundle)))

    def _end_phase(self) -> None:
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self._seconds[self._phase] += seconds
        self._metrics.set_load_seconds(self._phase, self._seconds[self._phase])
        logger.info("load phase ended", extra={"phase": self._phase.value, "seconds": round(seconds, 3)})
