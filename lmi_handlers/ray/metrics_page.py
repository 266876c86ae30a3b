"""Prometheus' text format: the pages of all replicas as one, and the load of a replica.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable

from lmi_handlers.metrics import catalogue
from lmi_handlers.ray.autoscaling_policy import KV_CACHE_USAGE, RUNNING, WAITING

_KEPT_SECONDS = 1.0
_FAMILY = "# HELP "
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", re.MULTILINE | re.ASCII)
_LOAD: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    RUNNING: (catalogue.RUNNING.name, sum),
    WAITING: (catalogue.WAITING.name, sum),
    KV_CACHE_USAGE: (catalogue.KV_CACHE_USAGE.name, max),  # of several models, any may be short of it
}


def asks_metrics(method: str, path: str) -> bool:
    """Tell whether a request asks for the metrics."""
    return method in ("GET", "HEAD") and path == "/metrics"


def labelled(page: str, replica: str, node: str) -> str:
    """Return a page with two more labels in each sample. Their values need no escapes: they are an id and an address."""
    added = f'replica="{replica}",node="{node}"'

    def sample(match: re.Match[str]) -> str:
        name, labels = match.groups()
        return f"{name}{{{labels},{added}}} " if labels else f"{name}{{{added}}} "

    return _SAMPLE.sub(sample, page)


def merged(pages: Iterable[str]) -> str:
    """Return one page with the samples of all. All lines of a metric must be together, and its help is only given once."""
    families: dict[str, list[str]] = {}
    for page in pages:
        for family in page.split(_FAMILY)[1:]:
            name = family.partition(" ")[0]
            if name in families:
                _, _, family = family.partition("\n# TYPE ")
                _, _, family = family.partition("\n")
            else:
                families[name] = [_FAMILY]
            families[name].append(family)
    return "".join("".join(parts) for parts in families.values())


def load_in(page: str) -> dict[str, float]:
    """Return the load that a server's page reports, by the names that the policy knows. What is not there is left out."""
    found = {name: values_in(page, metric) for name, (metric, _) in _LOAD.items()}
    return {name: _LOAD[name][1](values) for name, values in found.items() if values}


def values_in(page: str, metric: str) -> list[float]:
    """Return the values of all series of a gauge."""
    return [float(value) for value in re.findall(rf"^{re.escape(metric)}(?:{{.*}})? (\S+)$", page, re.MULTILINE)]


class Kept:
    """A page that takes time to make. It is made when somebody asks for it, once for all who ask within a second."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._task: asyncio.Task[bytes] | None = None
        self._made = 0.0

    async def get(self) -> bytes:
        """Return the page. Raises what `make` raises."""
        if self._task is None or (self._task.done() and time.monotonic() - self._made > _KEPT_SECONDS):
            self._task = asyncio.create_task(self._timed())
        return await asyncio.shield(self._task)  # others may wait for it, too

    async def _timed(self) -> bytes:
        try:
            return await self._make()
        finally:
            self._made = time.monotonic()
