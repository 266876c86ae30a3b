"""Every option that may be set: the shared ones, and those that the known backends declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler
from lmi_handlers.config.option import BOOLEANS, DeclaredOption, declared_options
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError

SERVER = "server"

_RESERVED = ("auto", "disable", SERVER)
"""Words with a meaning of their own where options name backends."""

SHARED: Mapping[str, DeclaredOption] = MappingProxyType(
    {
        name: msgspec.structs.replace(declared, read_by=(SERVER,) if declared.option.server else ())
        for name, declared in declared_options(ServingProperties).items()
    }
)
"""The options that no single backend owns: field of `ServingProperties` -> declaration."""


class Registry(msgspec.Struct, frozen=True):
    """The known backends by name, and all options by field name. `unusable` maps names of backends to what is wrong."""

    backends: Mapping[str, BackendDeclaration] = {}
    options: Mapping[str, DeclaredOption] = SHARED
    unusable: Mapping[str, str] = {}

    def with_backend(self, backend: BackendDeclaration) -> Registry:
        """Return a registry with one more backend.

        serving.properties has one namespace, so an option that several backends declare must be written in the same way
        for all of them. Raises `ConfigError` if it is not, and for a name that is taken or unknown.
        """
        options, own = dict(self.options), declared_options(backend.options)
        for name in backend.reads:
            if name not in SHARED:
                raise ConfigError(f"backend {backend.name!r} reads {name!r}, which is not a shared option")
        for name, declared in own.items():
            known = options.setdefault(name, declared)
            if name in SHARED:
                raise ConfigError(f"backend {backend.name!r} declares {declared.key}, which is a shared option")
            if not known.accepts_same(declared):
                others = " and ".join(known.read_by)
                raise ConfigError(
                    f"backend {backend.name!r} declares {declared.key}, which {others} declares differently"
                )
        for name in (*backend.reads, *own):
            known = options[name]
            options[name] = msgspec.structs.replace(known, read_by=(*known.read_by, backend.name))
        _check_unique(backend, "an option name", [key for declared in options.values() for key in declared.keys])
        backends = [*self.backends.values(), backend]
        _check_unique(backend, "a name", [*_RESERVED, *(name for other in backends for name in _names(other))])
        _check_unique(backend, "a handler", [name for other in backends for name in other.handlers])
        return Registry({other.name: other for other in backends}, _respelled(options, backends), self.unusable)

    def without_backend(self, name: str, reason: str) -> Registry:
        """Return a registry that knows why the backend cannot be used."""
        return msgspec.structs.replace(self, unusable={**self.unusable, name: reason})

    @property
    def keys(self) -> dict[str, DeclaredOption]:
        """Name in serving.properties (aliases included) -> declaration."""
        return {key: declared for declared in self.options.values() for key in declared.keys}

    @property
    def handlers(self) -> dict[str, tuple[str, LmiHandler]]:
        """LMI's handler -> the name of the backend that it chooses, and what else it means."""
        return {
            entry_point: (backend.name, handler)
            for backend in self.backends.values()
            for entry_point, handler in backend.handlers.items()
        }

    def is_asynchronous(self, entry_point: str | None) -> bool:
        """Tell whether `option.entryPoint` names an asynchronous handler of LMI's."""
        found = self.handlers.get(entry_point or "")
        return found is not None and found[1].asynchronous

    def requested(self, properties: ServingProperties) -> str:
        """Return the name of the backend that the options ask for, or "auto" to choose from what is installed."""
        if properties.rolling_batch in ("auto", "disable"):
            return properties.backend
        words = {word: backend.name for backend in self.backends.values() for word in backend.rolling_batch}
        return words.get(properties.rolling_batch, properties.rolling_batch)


def _names(backend: BackendDeclaration) -> set[str]:
    return {backend.name, *backend.rolling_batch, *backend.aliases}


def _check_unique(backend: BackendDeclaration, kind: str, names: list[str]) -> None:
    if taken := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"backend {backend.name!r} declares {kind} that already exists: {', '.join(sorted(taken))}")


def _respelled(options: dict[str, DeclaredOption], backends: list[BackendDeclaration]) -> dict[str, DeclaredOption]:
    """Let `rolling_batch` and `backend` accept every name of a backend, in any case."""
    own = {backend.name.lower(): backend.name for backend in backends}
    usual = {word: "auto" if value else "disable" for word, value in BOOLEANS.items()}
    usual |= {"auto": "auto", "disable": "disable"} | own
    usual |= {word: backend.rolling_batch[0] for backend in backends for word in backend.rolling_batch}
    names = {"auto": "auto"} | own
    names |= {word: backend.name for backend in backends for word in (*backend.rolling_batch, *backend.aliases)}
    for name, spellings in (("rolling_batch", usual), ("backend", names)):
        declared = options[name]
        options[name] = msgspec.structs.replace(declared, option=replace(declared.option, spellings=spellings))
    return options
