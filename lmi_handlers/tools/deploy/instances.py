"""Proposes instance types that have room for a model, and says why."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Literal

import msgspec

from lmi_handlers.tools.deploy.model_size import ModelSize, gib

_VISIBLE = 0.93
"""Of a GPU's published memory, programs see this much: 22.3 GiB of an A10G's 24, for example."""
_GPU_MEMORY_UTILIZATION = 0.9
_ACTIVATIONS = 1.5 * 2**30
"""Bytes per GPU for activations, CUDA graphs and the libraries themselves."""
_CPU_SHARE = 0.7
"""Of the memory of an instance without GPUs. The rest is for the system, the web workers and activations."""
_MAX_CPU_WEIGHTS = 4 * 2**30
"""Computing a token reads all weights once, and a CPU instance reads about 100 GB/s."""
_SHOWN = 5


class InstanceType(msgspec.Struct, frozen=True):
    """A row of instance_types.csv. Memory is in GiB, that of GPUs per GPU."""

    type: str
    vcpus: int
    memory: int
    gpus: int
    gpu: str = ""
    gpu_memory: int = 0
    compute_capability: float = 0.0


class Proposal(msgspec.Struct, frozen=True):
    """An instance type with room for the model. `tensor_parallel_degree` is 0 on a CPU."""

    instance: InstanceType
    tensor_parallel_degree: int
    reason: str


def instance_types() -> list[InstanceType]:
    """Read the table that is shipped with this package."""
    text = files(__package__).joinpath("instance_types.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [
        msgspec.convert({key: value for key, value in row.items() if value}, InstanceType, strict=False) for row in rows
    ]


def propose(
    size: ModelSize,
    types: Sequence[InstanceType],
    *,
    degree: int | Literal["max"],
    utilization: float | None,
    cpu_only: bool,
) -> list[Proposal]:
    """Return instance types, the smallest first, and at most one for each kind and number of GPUs.

    `degree` and `utilization` are the options `tensor_parallel_degree` and `gpu_memory_utilization`. With `cpu_only`, the
    backend uses no GPU; otherwise, CPU instances come last, and only for small models.
    """
    on_cpu = [] if size.weights > _MAX_CPU_WEIGHTS and not cpu_only else list(_on_cpu(size, types))
    if cpu_only:
        return on_cpu[:_SHOWN]
    found = [
        proposal
        for instance in types
        if instance.gpus and (proposal := _on_gpus(size, instance, degree, utilization or _GPU_MEMORY_UTILIZATION))
    ]
    found.sort(key=lambda proposal: (proposal.instance.gpus * proposal.instance.gpu_memory, proposal.instance.vcpus))
    best: dict[tuple[str, int], Proposal] = {}
    for proposal in found:
        best.setdefault((proposal.instance.gpu, proposal.instance.gpus), proposal)
    return [*list(best.values())[:_SHOWN], *on_cpu[:1]]


def _on_gpus(
    size: ModelSize, instance: InstanceType, degree: int | Literal["max"], utilization: float
) -> Proposal | None:
    """Return the smallest split of the model that fits, if there is one."""
    if size.is_bfloat16 and instance.compute_capability < 8.0:
        return None  # such a GPU has no bfloat16
    usable = instance.gpu_memory * 2**30 * _VISIBLE * utilization
    for number in _degrees(instance.gpus) if degree == "max" else (degree,):
        if number > instance.gpus or size.heads % number:
            continue
        cache = size.kv_cache / min(number, size.kv_heads or number)  # a head of the cache is not split
        taken = size.weights / number + cache + _ACTIVATIONS
        if taken <= usable:
            copies = instance.gpus // number
            reason = (
                f"{gib(size.weights / number)} weights + {gib(cache)} KV cache + {gib(_ACTIVATIONS)} activations = "
                f"{gib(taken)} of the {gib(usable)} that {utilization:.0%} of {'each' if number > 1 else 'one'} "
                f"{instance.gpu} ({instance.gpu_memory} GiB) has" + (f"; {copies} engines" if copies > 1 else "")
            )
            return Proposal(instance, number, reason)
    return None


def _degrees(gpus: int) -> Iterator[int]:
    """Yield 1, 2, 4, .. up to the number of GPUs."""
    return (2**power for power in range(int(math.log2(gpus)) + 1))


def _on_cpu(size: ModelSize, types: Sequence[InstanceType]) -> Iterator[Proposal]:
    without = sorted((item for item in types if not item.gpus), key=lambda item: (item.vcpus, item.memory))
    needed = size.weights + size.kv_cache + _ACTIVATIONS
    for instance in without:
        usable = instance.memory * 2**30 * _CPU_SHARE
        if needed <= usable:
            reason = (
                f"{gib(size.weights)} weights + {gib(size.kv_cache)} KV cache + {gib(_ACTIVATIONS)} activations = "
                f"{gib(needed)} of the {gib(usable)} that {_CPU_SHARE:.0%} of {instance.memory} GiB are"
            )
            yield Proposal(instance, 0, f"on {instance.vcpus} vCPUs: {reason}")


def render(size: ModelSize, proposals: Sequence[Proposal]) -> str:
    """Return the proposals for people."""
    lines = [*size.explained]
    if not proposals:
        lines.append("No instance type in the table has room for this model.")
    for proposal in proposals:
        split = f"tensor_parallel_degree={proposal.tensor_parallel_degree}, " if proposal.tensor_parallel_degree else ""
        lines.append(f"  {proposal.instance.type}: {split}{proposal.reason}")
    return "\n".join(lines)
