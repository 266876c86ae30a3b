"""Watches the workers on the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from vllm.v1.executor.ray_executor_v2 import RayWorkerHandle

from backends.vllm.ray.cluster import addresses
from backends.vllm.ray.failures import cause_of
from lmi_handlers.core.errors import EngineDead


class RayWorkers:
    """The workers of an engine. Ray says when one ends, and why."""

    def __init__(self, handles: Iterable[RayWorkerHandle]) -> None:
        known = addresses()
        self._ends: list[tuple[str, Future[Any]]] = [
            (
                f"vLLM's worker {handle.rank} on node {known.get(handle.node_id, handle.node_id)}",
                handle.run_ref.future(),
            )
            for handle in handles
            if handle.run_ref is not None
        ]

    def check_health(self, *, patience: float = 0.0) -> None:
        """Raise `EngineDead` with the node and the cause if a worker ends within `patience` seconds."""
        wait([end for _, end in self._ends], timeout=patience, return_when=FIRST_COMPLETED)
        for name, end in self._ends:
            if end.done():
                raise EngineDead(f"{name} has died: {cause_of(end.exception())}")
