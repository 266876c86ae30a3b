"""The engines: token ids in, token ids out. `BACKENDS` maps a name to where its class lives; nothing is imported until chosen."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lmi_handlers.errors import ConfigError

if TYPE_CHECKING:
    from backends.base import Backend

BACKENDS: dict[str, str] = {
    "echo": "backends.echo:EchoBackend",
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
        backend: type[Backend] = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ConfigError(f"backend {name!r} cannot be imported: {error}") from error
    return backend
