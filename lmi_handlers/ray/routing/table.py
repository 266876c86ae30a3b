"""The replicas as one of them knows them, and its choice among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lmi_handlers.core.affinity import choose
from lmi_handlers.ray.routing.members import Member

_MOST_KNOWN = 4096
"""Replicas beyond it are forgotten: an ended one that is never chosen would stay in the table for ever."""


class Table:
    """The view of replica `name`. Reports are up to a second old, so requests it has passed on since count, too."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.load = 0
        """Requests that this replica is answering itself."""
        self._others: dict[str, Member] = {}
        self._known: dict[str, Member] = {}
        self._passed: Counter[str] = Counter()

    def update(self, members: Iterable[Member]) -> None:
        """Note what all replicas have reported."""
        self._others = {member.name: member for member in members if member.name != self.name}
        self._known.update(self._others)
        for name in list(self._known)[:-_MOST_KNOWN]:
            del self._known[name]

    def get(self, name: str) -> Member | None:
        """Return another replica, also one that has not reported of late: a busy machine does not end its sessions."""
        return self._known.get(name)

    def forget(self, name: str) -> None:
        """Pass nothing on to a replica until it is reported again: it could not be reached, or accepts no requests."""
        self._others.pop(name, None)
        self._known.pop(name, None)

    def begin(self, name: str) -> None:
        """Count a request that is answered by a replica."""
        if name == self.name:
            self.load += 1
        else:
            self._passed[name] += 1

    def end(self, name: str) -> None:
        """Count that such a request has ended."""
        if name == self.name:
            self.load -= 1
        else:
            self._passed[name] -= 1
            self._passed += Counter()  # drops what is zero

    def choose(self, key: bytes) -> Member | None:
        """Return the other replica that should answer a request with this key, None if it is this one."""
        loads: dict[str, float] = {self.name: self.load}
        for name, member in self._others.items():
            loads[name] = max(member.load, self._passed[name])
        return self._others.get(choose(loads, key))
