"""Chooses one of several equal servers for a request: the one that may know its beginning, unless that has too much to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

_BOUND = 1.25
"""A server gets a request for its key only while its load is below this many times the mean, plus one."""


def choose(loads: Mapping[str, float], key: bytes) -> str:
    """Return the first server in the key's order that has room. `loads` has at least one server's load by its name."""
    return next(name for name in ranked(loads, key) if has_room(loads[name], loads.values()))


def ranked(names: Iterable[str], key: bytes) -> list[str]:
    """Return the names in the order in which they get a key's requests: the same in all processes.

    That is rendezvous hashing. If a server comes or goes, only the keys change their place that it gets or had.
    """
    digest = blake2b(key, digest_size=16).digest()
    return sorted(names, key=lambda name: blake2b(name.encode(), key=digest, digest_size=8).digest(), reverse=True)


def has_room(load: float, loads: Collection[float]) -> bool:
    """Tell whether a server with this load gets requests for their key. One of `loads` always has room."""
    return load <= _BOUND * sum(loads) / len(loads) + 1
