"""The engines of one model, and the GPUs of each: as in LMI, one for each group of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from lmi_handlers.config.properties import LoadedProperties
from lmi_handlers.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(visible: str | None, present: int) -> list[str]:
    """Return the numbers or UUIDs of the GPUs that may be used: for CUDA, the first -1 ends the list.

    `visible` is the value of `CUDA_VISIBLE_DEVICES`, or None if it is not set, and the GPUs are the `present` ones.
    """
    if visible is None:
        return [str(number) for number in range(present)]
    names = (name.strip() for name in visible.split(","))
    return [name for name in takewhile(lambda name: name != "-1", names) if name]


def plan_replicas(
    loaded: LoadedProperties, environ: Mapping[str, str], gpus: int | None, *, splits: bool
) -> tuple[str, ...]:
    """Return the `CUDA_VISIBLE_DEVICES` of each replica, "" to leave it as it is.

    There are `minWorkers` replicas, or else as many as there are groups of GPUs, up to `maxWorkers`. `gpus` is None if
    their number is not known. `splits` says that the backend splits layers across `tensor_parallel_degree` GPUs. Raises
    `ConfigError` if there are too few GPUs for `minWorkers`.
    """
    properties = loaded.properties
    degree = properties.tensor_parallel_degree if splits else "max"
    wanted = properties.min_workers if loaded.sets("minWorkers") else None
    if not gpus:
        return ("",) * (wanted or 1)
    per_replica = gpus // (wanted or 1) if degree == "max" else degree * properties.pipeline_parallel_degree
    replicas = wanted or max(1, min(gpus // max(1, per_replica), properties.max_workers or gpus))
    if replicas == 1:
        return ("",)
    if per_replica * replicas > gpus or not per_replica:
        raise ConfigError(
            f"minWorkers={replicas} needs {replicas * max(1, per_replica)} GPUs, {max(1, per_replica)} for each engine, "
            f"but there {'is' if gpus == 1 else 'are'} {gpus}"
        )
    names = visible_gpus(environ.get(VISIBLE), gpus)
    return tuple(
        ",".join(names[first : first + per_replica]) for first in range(0, replicas * per_replica, per_replica)
    )
