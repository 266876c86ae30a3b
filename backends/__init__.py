"""The engines: token ids in, token ids out. `BACKENDS` maps a name to where its class lives; nothing is imported until chosen."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from backends.base import Backend
from lmi_handlers.errors import ConfigError

BACKENDS: dict[str, str] = {
    "echo": "backends.echo:EchoBackend",
    "tensorrt_llm": "backends.tensorrt_llm:TensorRTLLMBackend",
    "transformers": "backends.transformers:TransformersBackend",
}

ENTRY_POINT_GROUP = "lmi_handlers.backends"


def available_backends() -> dict[str, str]:
    """`BACKENDS` and what other distributions register under the entry point group `lmi_handlers.backends`."""
    return BACKENDS | {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def load_backend_class(name: str) -> type[Backend]:
    """Import the adapter called `name`, one of `available_backends`. Raises `ConfigError` where it cannot be imported."""
    module_name, _, class_name = available_backends()[name].partition(":")
    try:
        loaded: object = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a third party's module may fail in any way
        raise ConfigError(f"backend {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise ConfigError(f"backend {name!r} is not a backends.base.Backend: {module_name}:{class_name}")
    return loaded
