"""Prepares vLLM's configuration for workers on a cluster."""

from __future__ import annotations

import time

from ray.exceptions import RayError
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from backends.vllm.ray.cluster import Report, connect, reserve, supply
from backends.vllm.ray.demand import demand
from backends.vllm.ray.failures import cause_of
from backends.vllm.ray.requirements import OPTION
from backends.vllm.ray.variables import withhold_variables
from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.core.load_phase import LoadPhase

_SHARE_OF_LIMIT = 0.9
"""The supervisor, which ends a load at the limit, does not know the cause."""


def place_workers(config: VllmConfig, limit: float, report: Report) -> None:
    """Wait until the cluster has what the workers need, and reserve it. `limit` is that of a load, in seconds.

    Raises `LoadFailed`.
    """
    report(LoadPhase.RESOURCES)
    deadline = time.monotonic() + limit * _SHARE_OF_LIMIT
    parallel, on_cpu = config.parallel_config, current_platform.is_cpu()
    try:
        connect(deadline, report)
        bundles = demand(parallel.world_size, supply(), gpus=not on_cpu)
        parallel.placement_group = reserve(bundles, deadline, report)
    except (ValueError, RuntimeError, RayError) as error:  # the head node may end at any moment, and return
        raise LoadFailed(f"{OPTION}: the Ray cluster has failed: {cause_of(error)}") from error
    withhold_variables()
    if on_cpu:
        from backends.vllm.ray.cpu_executor import CpuRayExecutor

        parallel.distributed_executor_backend = CpuRayExecutor
    report(LoadPhase.WEIGHTS)
