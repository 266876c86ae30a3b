"""Chooses an instance type for a model, and the options with which the server is as large as was assumed."""

from __future__ import annotations

import os
from pathlib import Path

from backends import declaration, registry
from lmi_handlers.config.properties import LoadedProperties
from lmi_handlers.config.scripts import find_script
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.terminal import show_error
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import find_config, find_gguf
from lmi_handlers.tools.deploy.instances import InstanceType, Proposal, instance_types, propose, render
from lmi_handlers.tools.deploy.model_size import ModelSize, model_size

UNKNOWN_SIZE = "the model's size is not known, because its files are not here or its own code loads it"
_DEFAULT_INSTANCE_TYPE = "ml.g5.xlarge"


def proposals(
    loaded: LoadedProperties,
    model_dir: Path | None,
    types: list[InstanceType],
    *,
    max_model_len: int | None,
    batch: int | None,
) -> tuple[ModelSize, list[Proposal]] | None:
    """Return the model's size and which of `types` suit it, or None if its files are elsewhere. Raises `ConfigError`."""
    properties = loaded.properties
    if properties.model_id is None and model_dir is None:
        return None
    asynchronous = properties.has_asynchronous_handler
    if find_script(model_dir, properties.entry_point, {}, properties.handler, asynchronous=asynchronous) is not None:
        return None
    gguf = find_gguf(properties.model_id, model_dir)
    config_file = find_config(properties, default_cache_dir(os.environ))
    model = gguf if gguf is not None or config_file is None else config_file.parent
    size = model_size(model, config_file, properties, max_model_len=max_model_len, batch=batch)
    if size is None:
        return None
    requested = registry().requested(properties)
    found = propose(
        size,
        types,
        degree=properties.tensor_parallel_degree,
        utilization=properties.gpu_memory_utilization,
        cpu_only=requested != "auto" and declaration(requested).cpu_only,
    )
    return size, found


def choose(
    loaded: LoadedProperties,
    model_dir: Path | None,
    instance_type: str | None,
    *,
    max_model_len: int | None,
    batch: int | None,
) -> tuple[str, int | None]:
    """Return the instance type, and over how many of its GPUs the model is split, or None if that is not known.

    Without `instance_type`, it is the smallest with room for the model, and standard error says why. Raises `ConfigError`.
    """
    types = [item for item in instance_types() if instance_type in (None, item.type)]
    found = proposals(loaded, model_dir, types, max_model_len=max_model_len, batch=batch)
    if instance_type is not None:
        return instance_type, found[1][0].tensor_parallel_degree or None if found and found[1] else None
    if found is None:
        show_error(f"instance type {_DEFAULT_INSTANCE_TYPE}: {UNKNOWN_SIZE}")
        return _DEFAULT_INSTANCE_TYPE, None
    size, fitting = found
    show_error(render(size, fitting))
    if not fitting:
        raise ConfigError("no instance type has room for the model: reduce --max-model-len, or name --instance-type")
    return fitting[0].instance.type, fitting[0].tensor_parallel_degree or None


def may_have_gpus(instance_type: str) -> bool:
    """Tell whether instances of this type have GPUs, or are not in the table."""
    return all(item.gpus for item in instance_types() if item.type == instance_type)


def assumed_options(
    loaded: LoadedProperties, *, max_model_len: int | None, batch: int | None, degree: int | None
) -> dict[str, int]:
    """Return the options that were assumed for the size and are not set yet."""
    assumed = {"max_model_len": max_model_len, "max_rolling_batch_size": batch, "tensor_parallel_degree": degree}
    explicit = {setting.key for setting in loaded.explicit}
    return {name: value for name, value in assumed.items() if value is not None and f"option.{name}" not in explicit}
