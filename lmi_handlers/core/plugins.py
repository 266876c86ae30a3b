"""Finds classes and declarations by name: our own in a table, others by entry point. Imports only what is used."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from lmi_handlers.core.errors import ConfigError

T = TypeVar("T")


def with_entry_points(table: Mapping[str, str], group: str) -> dict[str, str]:
    """Return `table` (name to "module:name") plus what other distributions register under the entry point `group`."""
    return dict(table) | {point.name: point.value for point in installed(group)}


def installed(group: str) -> list[EntryPoint]:
    """Return the entry points of a group. They are read once per process, and not again by processes forked from it."""
    return [point for point in _entry_points(tuple(sys.path)) if point.group == group]


@functools.lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001  the cache depends on it
    """Return all entry points. This reads a file of each installed distribution, which takes 50 ms or more in total."""
    by_group: Any = entry_points()  # before Python 3.12 a dict, whose `select` puts all groups together each time
    return tuple(itertools.chain.from_iterable(dict.values(by_group)) if isinstance(by_group, dict) else by_group)


def load_class(kind: str, locations: Mapping[str, str], name: str, base: type[T]) -> type[T]:
    """Import the class called `name`, a subclass of `base`. `kind` is what error messages call it.

    Raises `ConfigError` if the name is unknown, the import fails, or the result is not a subclass of `base`.
    """
    loaded = _load(kind, locations, name)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ConfigError(f"{kind} {name!r} is not a {base.__module__}.{base.__name__}: {locations[name]}")
    return loaded


def load_instance(kind: str, locations: Mapping[str, str], name: str, of: type[T]) -> T:
    """Import the object called `name`, an instance of `of`. Raises `ConfigError` like `load_class`."""
    loaded = _load(kind, locations, name)
    if not isinstance(loaded, of):
        raise ConfigError(f"{kind} {name!r} is not a {of.__module__}.{of.__name__}: {locations[name]}")
    return loaded


def load_function(kind: str, locations: Mapping[str, str], name: str) -> Callable[..., Any]:
    """Import the function called `name`. Raises `ConfigError` like `load_class`."""
    loaded = _load(kind, locations, name)
    if not callable(loaded):
        raise ConfigError(f"{kind} {name!r} is not a function: {locations[name]}")
    return loaded


def _load(kind: str, locations: Mapping[str, str], name: str) -> object:
    if name not in locations:
        raise ConfigError(f"unknown {kind} {name!r}; known: {', '.join(sorted(locations))}")
    module_name, _, attribute = locations[name].partition(":")
    try:
        with importing():
            return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # third-party modules may raise anything
        raise ConfigError(f"{kind} {name!r} cannot be imported: {one_line(error)}") from error


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage during the block, which imports a large library.

    The objects that an import makes stay. Searching them again and again takes a fifth of the time, with transformers about
    a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def one_line(error: Exception) -> str:
    """Return the class and the message of an error, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
