"""vLLM's executor for Ray, on CPUs. vLLM 0.32 itself only runs it on accelerators that Ray counts."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup
from vllm.distributed.device_communicators import cpu_communicator
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc

from backends.vllm.ray.cluster import addresses
from backends.vllm.ray.demand import CPU

_THREADS_VARIABLE = "OMP_NUM_THREADS"


class CpuRayWorker(RayWorkerProc):
    """A worker without a GPU."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        """Return this worker's node, and no GPU."""
        return ray.get_runtime_context().get_node_id(), []

    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        """Load the model. Workers of one node share memory, and those of several talk over the network.

        Which of the two, they find out by comparing names for the memory, so these must differ between nodes.
        """
        group_name = cpu_communicator._CPUSHMDistributed.make_group_name  # noqa: SLF001
        node = ray.get_runtime_context().get_node_id()
        cpu_communicator._CPUSHMDistributed.make_group_name = staticmethod(  # noqa: SLF001
            lambda communicator: f"{group_name(communicator)}-{node[:8]}"
        )
        super().initialize_worker(*args, **kwargs)


class CpuRayExecutor(RayExecutorV2):
    """Workers on CPUs. The placement group is made before, and each of its bundles is for one worker."""

    def _init_executor(self) -> None:
        # Names of the module, because vLLM has no other way to replace these.
        ray_executor_v2.RayWorkerProc = CpuRayWorker
        ray_executor_v2.get_bundles_sorted_by_node = _bundles_by_node
        ray_executor_v2.initialize_ray_cluster = lambda *_args, **_kwargs: None
        super()._init_executor()

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {"num_gpus": 0}  # the bundle has the cores

    def _build_runtime_env(self) -> dict[str, Any]:
        runtime_env: dict[str, Any] = super()._build_runtime_env()
        cores = int(self.parallel_config.placement_group.bundle_specs[0][CPU])
        # PyTorch reads it when it is imported. Ray itself would set it to 1, because the actor asks for no core.
        runtime_env["env_vars"][_THREADS_VARIABLE] = os.environ.get(_THREADS_VARIABLE, str(cores))
        return runtime_env


def _bundles_by_node(group: PlacementGroup) -> list[tuple[int, str, str]]:
    """Return each bundle's number, node and its address, so that neighbouring ranks share a node."""
    known = addresses()
    nodes = placement_group_table(group)["bundles_to_node_id"]
    own = ray.get_runtime_context().get_node_id()
    ordered = sorted(nodes.items(), key=lambda item: (item[1] != own, item[1], item[0]))
    return [(bundle, node, known[node]) for bundle, node in ordered]
