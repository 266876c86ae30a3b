"""Requirements of a replica: its resources, and the number of its concurrent requests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from backends import registry
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.configuration import Configuration

_LARGEST_DEFAULT = 256
"""More than any backend's default of `option.max_rolling_batch_size`."""

_OTHER_REQUESTS = 256
"""Requests to a full replica that its server answers at once, such as `/ping` and those that it rejects."""


class Node(msgspec.Struct, frozen=True):
    """Resources of one node of the cluster."""

    cpus: float
    gpus: int


class Resources(msgspec.Struct, frozen=True):
    """Resources of one replica, all on one node."""

    num_cpus: float
    num_gpus: int


def nodes_of(listed: Sequence[Mapping[str, object]]) -> list[Node]:
    """Return the nodes in `ray.nodes()` that are alive."""
    resources = [node["Resources"] for node in listed if node["Alive"]]
    return [Node(float(each.get("CPU", 0)), int(each.get("GPU", 0))) for each in resources if isinstance(each, Mapping)]


def resources_of(
    configuration: Configuration,
    nodes: Sequence[Node],
    replicas: int,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
) -> Resources:
    """Return the resources that one of `replicas` replicas needs. Raises `ConfigError` if no node has them.

    Given numbers take precedence. Without a GPU, each replica gets an equal share of the cores, because Ray sets
    `OMP_NUM_THREADS` to them.
    """
    backend, properties = configuration.backend, configuration.properties
    if configuration.custom_code is None and backend.is_remote(properties):
        raise ConfigError(
            f"option.{next(iter(backend.remote))}: the engine asks Ray for its workers itself, so start it with `lmi serve`"
        )
    largest = max((node.gpus for node in nodes), default=0)
    gpus = _gpus(configuration, largest) if num_gpus is None else num_gpus
    if num_cpus is not None:
        cpus = num_cpus
    elif gpus or configuration.backend.name == "echo":
        cpus = 1.0
    else:
        cpus = _share_of_cores([node.cpus for node in nodes], replicas)
    if not any(node.gpus >= gpus and node.cpus >= cpus for node in nodes):
        have = ", ".join(sorted({f"{node.cpus:g} CPUs and {node.gpus} GPUs" for node in nodes})) or "no resources"
        raise ConfigError(
            f"a replica needs {cpus:g} CPUs and {gpus} GPUs on one node, and the nodes have {have}; "
            "see option.tensor_parallel_degree, num_cpus and num_gpus"
        )
    return Resources(num_cpus=cpus, num_gpus=gpus)


def has_room(nodes: Sequence[Node], resources: Resources, replicas: int) -> bool:
    """Tell whether this many `replicas` fit on the nodes."""
    return sum(_fitting(node, resources) for node in nodes) >= replicas


def _fitting(node: Node, resources: Resources) -> int:
    by_cpus = int(node.cpus / resources.num_cpus)
    return min(by_cpus, node.gpus // resources.num_gpus) if resources.num_gpus else by_cpus


def _gpus(configuration: Configuration, largest: int) -> int:
    """Return how many GPUs a replica uses. `largest` is the number that a node has at most.

    If the backend is to be chosen on the replica's node, it may use them: this process may run on a node without GPUs.
    """
    properties = configuration.properties
    if not largest:
        return 0
    if configuration.custom_code is None and registry().requested(properties) != "auto":
        backend = configuration.backend
        if backend.cpu_only or not backend.needs_model:
            return 0
        asks = configuration.loaded.sets("option.tensor_parallel_degree")
        if "tensor_parallel_degree" not in backend.reads or (backend.replicates and not asks):
            return 1
    degree = properties.tensor_parallel_degree
    if degree == "max":
        return 1 if configuration.custom_code is not None else largest
    return degree * properties.pipeline_parallel_degree


def _share_of_cores(cores: Sequence[float], replicas: int) -> float:
    if threads := os.environ.get("OMP_NUM_THREADS", ""):
        return float(threads) if threads.isdecimal() else 1.0
    return float(max(1, min(min(cores, default=1), sum(cores) // replicas)))


def max_ongoing_requests(configuration: Configuration) -> int:
    """Return how many requests a replica may have at once.

    More than its batch and queue hold, so that the server itself rejects the excess.
    """
    properties = configuration.properties
    batch = properties.max_rolling_batch_size or _LARGEST_DEFAULT
    return (batch + properties.job_queue_size) * properties.min_workers + _OTHER_REQUESTS


def batch_size(configuration: Configuration) -> int:
    """Return how many sequences the engines of a replica run at once at most.

    The backend that `auto` chooses on this machine may not be that of the replica's node, but their defaults are similar.
    A model's own code counts requests. It is taken to answer one batch at a time in each process if nothing says more.
    """
    properties = configuration.properties
    if configuration.custom_code is not None:
        calls = properties.max_rolling_batch_size or properties.batch_size
        return configuration.custom_code.max_processes * calls
    default = configuration.backend.defaults.get("max_rolling_batch_size") or _LARGEST_DEFAULT
    batch = properties.max_rolling_batch_size or default if properties.rolling else properties.batch_size
    return int(batch) * properties.min_workers
