"""The engines: token ids in, token ids out.

`BACKENDS` maps each name to the location of its declaration. The class itself is imported only when it is chosen.
"""

from __future__ import annotations

import functools

from backends.base import Backend
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.registry import Registry
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufHeader
from lmi_handlers.core.plugins import load_class, load_function, load_instance, with_entry_points

BACKENDS: dict[str, str] = {
    "echo": "backends.echo:DECLARATION",
    "openvino": "backends.openvino:DECLARATION",
    "transformers": "backends.transformers:DECLARATION",
    "vllm": "backends.vllm:DECLARATION",
    "lmi_dist": "backends.lmi_dist:DECLARATION",
    "tensorrt_llm": "backends.tensorrt_llm:DECLARATION",
    "remote": "backends.remote:DECLARATION",
}

ENTRY_POINT_GROUP = "lmi_handlers.backends"


def available_backends() -> dict[str, str]:
    """Return `BACKENDS` plus what other distributions register in the entry point group `lmi_handlers.backends`."""
    return with_entry_points(BACKENDS, ENTRY_POINT_GROUP)


def registry() -> Registry:
    """Return the declarations of all backends. A broken one does not affect the others."""
    return _registry(tuple(available_backends().items()))


def declaration(name: str) -> BackendDeclaration:
    """Return the declaration of the backend called `name`. Raises `ConfigError` if it is unknown or broken."""
    known = registry()
    if name in known.backends:
        return known.backends[name]
    if name in known.unusable:
        raise ConfigError(known.unusable[name])
    raise ConfigError(f"unknown backend {name!r}; known: {', '.join(sorted({*known.backends, *known.unusable}))}")


def load_backend_class(name: str, *, pools: bool = False) -> type[Backend]:
    """Import the adapter called `name`. Raises `ConfigError` if it does not exist or cannot be imported.

    With `pools`, import the adapter that embeds and classifies prompts. The backend must declare one.
    """
    location = declaration(name).pooling if pools else declaration(name).location
    return load_class("backend", {name: location}, name, Backend)  # type: ignore[type-abstract]  # for a type check


def choose_precision(name: str, properties: ServingProperties, header: GgufHeader | None) -> tuple[str, str] | None:
    """Return what the backend called `name` would compute in, and why, or None if only the engine knows.

    `header` is that of the model's GGUF file. Raises `ConfigError` if the backend's function cannot be imported.
    """
    location = declaration(name).precision
    if not location:
        return None
    chosen: tuple[str, str] = load_function("precision of backend", {name: location}, name)(properties, header)
    return chosen


@functools.lru_cache(maxsize=1)
def _registry(locations: tuple[tuple[str, str], ...]) -> Registry:
    known = Registry()
    for name, _ in locations:
        known = _with_backend(known, name, dict(locations))
    return known


def _with_backend(known: Registry, name: str, locations: dict[str, str]) -> Registry:
    try:
        found = load_instance("backend", locations, name, BackendDeclaration)
        if found.name != name:
            raise ConfigError(f"backend {name!r} is declared under another name: {found.name!r}")
        return _checked(known, found)
    except ConfigError as error:
        return known.without_backend(name, str(error))


def _checked(known: Registry, found: BackendDeclaration) -> Registry:
    try:
        return known.with_backend(found)
    except ConfigError:
        raise
    except Exception as error:  # nothing checks the types of a third party's declaration
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"backend {found.name!r} has a declaration that cannot be used: {cause}") from error
