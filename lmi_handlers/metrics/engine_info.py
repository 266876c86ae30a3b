"""vLLM's labels of an engine, for routers outside: the blocks of its KV cache, and the adapters in use.

The engine process writes a file, because no cell can hold a text. Whoever serves `/metrics` reads those of all engines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from lmi_handlers.core.files import write_whole
from lmi_handlers.metrics.series import Catalogue, Metric, sample

CATALOGUE = Catalogue()
LORA_REQUESTS = CATALOGUE.gauge(
    "vllm:lora_requests_info",
    "seconds",
    "Adapters whose requests run and wait, and how many fit into a batch. The value is the time of the last change.",
)
CACHE_CONFIG = CATALOGUE.gauge(
    "vllm:cache_config_info", "", "The blocks of each engine's KV cache. The value is always 1."
)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `block_size` is in tokens. `max_loras` is None if the engine has no adapters.

    `running` and `waiting` are adapters of requests that run and wait. `since` is when they changed, in seconds since 1970.
    """

    block_size: int
    num_blocks: int
    max_loras: int | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    since: float = 0.0


class EngineInfoFile:
    """Writes the file of one of the `replicas`. `directory` is that of the metrics, beside which the file is."""

    def __init__(self, directory: Path, replica: int) -> None:
        self._path = _pattern(directory, str(replica))
        self._path.unlink(missing_ok=True)  # of an engine that is gone
        self._written: EngineInfo | None = None

    def write(self, info: EngineInfo) -> None:
        """Write what has changed. Without room on the disk, later."""
        if info == self._written:
            return
        with contextlib.suppress(OSError):
            write_whole(self._path, msgspec.json.encode(msgspec.structs.replace(info, since=time.time())))
            self._written = info


def read_engines(directory: Path) -> dict[str, EngineInfo]:
    """Return what is known of each engine, by its number."""
    found = {}
    for path in sorted(directory.parent.glob(_pattern(directory, "*").name)):
        with contextlib.suppress(OSError):  # it is being started again
            found[path.stem.rpartition("-")[2]] = msgspec.json.decode(path.read_bytes(), type=EngineInfo)
    return found


def exposition(models: Sequence[tuple[Mapping[str, str], Mapping[str, EngineInfo]]]) -> str:
    """Return the text of the series. `models` has the labels that name a model, and what its engines say."""
    lines: list[str] = []
    for metric, series in ((LORA_REQUESTS, _lora_requests), (CACHE_CONFIG, _cache_config)):
        found = [line for labels, engines in models for line in series(metric, labels, engines)]
        if found:
            lines += (*metric.head, *found)
    return "".join(f"{line}\n" for line in lines)


def _lora_requests(metric: Metric, labels: Mapping[str, str], engines: Mapping[str, EngineInfo]) -> Iterator[str]:
    """Yield one series for all engines of a model: as vLLM does, they serve the same adapters."""
    having = [info for info in engines.values() if info.max_loras is not None]
    if not having:
        return
    running = {name for info in having for name in info.running}
    waiting = {name for info in having for name in info.waiting}
    own = {
        "max_lora": str(max(info.max_loras or 0 for info in having)),
        "waiting_lora_adapters": ",".join(sorted(waiting)),
        "running_lora_adapters": ",".join(sorted(running)),
    }
    yield sample(metric.name, {**labels, **own}, max(info.since for info in having))


def _cache_config(metric: Metric, labels: Mapping[str, str], engines: Mapping[str, EngineInfo]) -> Iterator[str]:
    for engine, info in engines.items():
        if info.num_blocks:
            own = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_blocks), "engine": engine}
            yield sample(metric.name, {**labels, **own}, 1.0)


def _pattern(directory: Path, replica: str) -> Path:
    return directory.with_name(f"{directory.name}-of-engine-{replica}.json")
