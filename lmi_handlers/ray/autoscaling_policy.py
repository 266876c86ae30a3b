"""Computes the number of replicas. Ray's controller calls `Policy` ten times per second.

As many replicas are needed as run all sequences that are there at once, those that wait included, when each fills
`target_usage` of its batch and of its KV cache. Ray adds the delays and the bounds.

Ray copies this module to the controller by value, so it imports nothing of ours, and a new version takes effect although
the controller is still the same process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

RUNNING, WAITING, KV_CACHE_USAGE = "lmi_running", "lmi_waiting", "lmi_kv_cache_usage"
"""Values that replicas record, besides Ray's own number of requests."""

_OLDEST_SECONDS = 30.0
"""A replica that has recorded nothing for longer may be hanging: nothing is known about it."""


class ReplicaLoad(NamedTuple):
    """Load of a replica, on average over the look-back period: sequences, and the share of the KV cache in use."""

    running: float
    waiting: float
    kv_cache_usage: float


def usage(load: ReplicaLoad, batch: float) -> float:
    """Return the number of replicas that this one's load needs: 1 if it is exactly full.

    While sequences wait, the running ones count as the maximum, whichever limit they have reached: the batch, the KV
    cache, or one that is unknown here.
    """
    fits = min(batch, max(1.0, load.running)) if load.waiting >= 1 else batch
    return max((load.running + load.waiting) / fits, load.kv_cache_usage)


def replicas_needed(loads: Iterable[ReplicaLoad], batch: float, target_usage: float) -> int:
    """Return the number of replicas for these loads, at least 1."""
    total = math.fsum(usage(load, batch) for load in loads)
    return max(1, math.ceil(total / target_usage - 1e-9))


class Policy:
    """The policy as Ray calls it. `batch` is how many sequences a replica runs at most."""

    def __init__(self, batch: float, target_usage: float) -> None:
        self._batch = batch
        self._target_usage = target_usage

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas for an `AutoscalingContext` of Ray's.

        While nothing is known about some replica, because it is new or hangs, the number does not decrease.
        """
        loads = known_loads(context.raw_metrics or {}, context.current_time)
        needed = replicas_needed(loads, self._batch, self._target_usage)
        if len(loads) < context.current_num_replicas or not loads:
            needed = max(needed, context.target_num_replicas)
        return needed, {}


def known_loads(recorded: Mapping[str, Mapping[Any, Sequence[Any]]], now: float) -> list[ReplicaLoad]:
    """Return the loads of the replicas that have recorded theirs. `recorded` has their series, by name and replica."""
    series = [recorded.get(name, {}) for name in (RUNNING, WAITING, KV_CACHE_USAGE)]
    loads = []
    for replica in series[0]:
        points = [each.get(replica, ()) for each in series]
        if all(points) and now - points[0][-1].timestamp < _OLDEST_SECONDS:
            loads.append(ReplicaLoad(*(math.fsum(point.value for point in each) / len(each) for each in points)))
    return loads
