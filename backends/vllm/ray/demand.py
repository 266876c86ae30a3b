"""The demand on a cluster, and its supply. Imports neither Ray nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

GPU = "GPU"
CPU = "CPU"


class Supply(msgspec.Struct, frozen=True):
    """The supply of a cluster, by Ray's names for resources: all on each node, and what nobody has reserved."""

    nodes: Sequence[Mapping[str, float]]
    free: Mapping[str, float]


def demand(workers: int, supply: Supply, *, gpus: bool) -> list[dict[str, float]]:
    """Return what each worker needs: one GPU or, without GPUs, as many cores as all of them can have.

    Ray keeps each of these bundles on one node, and fills a node before it takes the next.
    """
    if gpus:
        return [{GPU: 1.0} for _ in range(workers)]
    cores = [node[CPU] for node in supply.nodes if node.get(CPU)]
    shares = range(int(max(cores, default=1.0)), 1, -1)
    share = next((share for share in shares if sum(core // share for core in cores) >= workers), 1)
    return [{CPU: float(share)} for _ in range(workers)]


def demand_in_words(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return for example "2 workers with 1 GPU each". All workers need the same."""
    ((kind, amount),) = bundles[0].items()
    each = " each" if len(bundles) > 1 else ""
    return f"{_counted(len(bundles), 'worker')} with {_counted(amount, kind)}{each}"


def supply_in_words(supply: Supply, kind: str) -> str:
    """Return what the cluster has of a kind of resource, for example "2 nodes with 8 GPUs in all, of which 3 are free"."""
    amounts = [node[kind] for node in supply.nodes if node.get(kind)]
    if not amounts:
        return f"{_counted(len(supply.nodes), 'node')} without a {kind}"
    free = supply.free.get(kind, 0.0)
    having = f"{_counted(len(amounts), 'node')} with {_counted(sum(amounts), kind)}"
    return f"{having} in all, of which {free:g} {'is' if free == 1 else 'are'} free"


def kind_of(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return the kind of resource that the bundles are of."""
    return next(iter(bundles[0]))


def _counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
