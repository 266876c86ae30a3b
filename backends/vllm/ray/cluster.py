"""Connects this process to the cluster, and reserves resources there. vLLM would wait for them for half an hour."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from backends.vllm.ray.demand import Supply, demand_in_words, kind_of, supply_in_words
from backends.vllm.ray.requirements import ADDRESS_VARIABLE, OPTION
from lmi_handlers.core.errors import LoadFailed

Report = Callable[[str], None]

_POLL_SECONDS = 1.0
_WAIT_SECONDS = 5  # each wait stays in a list of the head node
_PATIENCE = 8.0  # before it is said that nobody answers


def connect(deadline: float, report: Report) -> None:
    """Connect to the cluster, once there is one. Raises `LoadFailed` at the `deadline`, on the monotonic clock.

    Ray's own attempts have no limit if nobody answers at the address.
    """
    address = os.environ.get(ADDRESS_VARIABLE) or "auto"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # of what workers write
    told = ""
    while not ray.is_initialized():
        attempt = _Attempt(address)
        attempt.join(_PATIENCE)
        while True:
            attempt.join(_POLL_SECONDS)
            if not attempt.is_alive() and attempt.error is None:
                return
            cause = f"{address} does not answer" if attempt.error is None else _first_line(attempt.error)
            if time.monotonic() > deadline:
                raise LoadFailed(f"{OPTION}: cannot connect to a Ray cluster: {cause} ({ADDRESS_VARIABLE})")
            if cause != told:
                report(f"a Ray cluster: {cause}")
                told = cause
            if attempt.error is not None:
                time.sleep(_POLL_SECONDS)
                break


class _Attempt(threading.Thread):
    """Connects once. A thread, because it may never end; and Ray takes over SIGTERM only on the main thread."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            ray.init(address=self._address, logging_level=logging.ERROR)
        except Exception as error:  # noqa: BLE001  Ray raises anything, and the operator must hear of it
            self.error = error


def supply() -> Supply:
    """Return what the connected cluster has."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    return Supply([node["Resources"] for node in nodes if node["Alive"]], free)


def addresses() -> dict[str, str]:
    """Return the address of each node, by Ray's id for it."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}


def reserve(bundles: Sequence[dict[str, float]], deadline: float, report: Report) -> PlacementGroup:
    """Reserve the resources, once they are free. Raises `LoadFailed` at the `deadline`, on the monotonic clock."""
    group = placement_group(list(bundles), strategy="PACK")
    asked, told = demand_in_words(bundles), ""
    while not group.wait(_WAIT_SECONDS):  # returns as soon as they are
        has = supply_in_words(supply(), kind_of(bundles))
        if time.monotonic() > deadline:
            remove_placement_group(group)
            raise LoadFailed(f"{OPTION}: {asked} are asked for, and the Ray cluster has {has}")
        if has != told:
            report(f"{asked} are asked for, and the Ray cluster has {has}")
            told = has
    return group


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
