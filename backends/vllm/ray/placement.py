"""Prepares vLLM's configuration for workers on a cluster."""

from __future__ import annotations

import os
import time

from ray.exceptions import RayError
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.ray.ray_env import RAY_NON_CARRY_OVER_ENV_VARS, get_env_vars_to_copy

from backends.vllm.ray.cluster import Report, connect, reserve, supply
from backends.vllm.ray.demand import demand
from backends.vllm.ray.failures import cause_of
from backends.vllm.ray.requirements import OPTION
from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.redaction import is_hidden, is_secret

_SHARE_OF_LIMIT = 0.9
"""The supervisor, which ends a load at the limit, does not know the cause."""

_MORE_VARIABLES = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
"""Variables for workers, besides those that vLLM lists for its other executors."""


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


def withhold_variables() -> None:
    """Let workers have only the variables that vLLM lists, or `VLLM_RAY_EXTRA_ENV_VARS_TO_COPY` names, and no secrets.

    By default, vLLM passes on all variables of the engine.
    """
    wanted = get_env_vars_to_copy(additional_vars={*current_platform.additional_env_vars, *_MORE_VARIABLES})
    RAY_NON_CARRY_OVER_ENV_VARS.update(
        name for name, text in os.environ.items() if name not in wanted or is_secret(name, text) or is_hidden(name)
    )
