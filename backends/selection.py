"""Which backend a serving.properties asks for, and why."""

from __future__ import annotations

import importlib.util

import msgspec

from backends import available_backends
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties

_PREFERENCE = (("vllm", "vllm"),)
"""(backend, library): what `auto` takes, in order, where both are there; `transformers` is what remains."""


class Selection(msgspec.Struct, frozen=True):
    """The chosen backend's name and a sentence for the log."""

    name: str
    reason: str


def select_backend(properties: ServingProperties) -> Selection:
    """Follow `option.rolling_batch` or `option.backend`; with both on `auto`, take the best that is installed.

    Raises `ConfigError` for a backend that does not exist. Imports none.
    """
    name, available = properties.backend_name, available_backends()
    if name not in ("auto", *available):
        raise ConfigError(f"unknown backend {name!r}; known: {', '.join(sorted(available))}")
    if name != "auto":
        return Selection(name, "serving.properties asks for it")
    for candidate, library in _PREFERENCE:
        if candidate in available and importlib.util.find_spec(library) is not None:
            return Selection(candidate, f"{library} is installed")
    return Selection("transformers", "no faster engine is installed")
