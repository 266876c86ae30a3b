"""The actor that knows all replicas of a deployment: each tells it how busy it is, and learns how busy the others are.

Requests do not ask it, except for a session whose replica is not known. If it ends, Ray starts it again, and the replicas
go on with what they have heard last.
"""

from __future__ import annotations

import time

import msgspec

ACTOR = "members"
"""Its name among the actors of the deployment."""

_EXPIRY_SECONDS = 3.0
"""A replica that has not reported for this long is not ready, or has ended."""


class Member(msgspec.Struct, frozen=True):
    """A replica that accepts requests: where, and how many it is answering."""

    name: str
    host: str
    port: int
    load: int


class Members:
    """The replicas that have reported of late. Ray calls these methods."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._reports: dict[str, tuple[float, Member]] = {}

    def report(self, member: Member | None) -> list[Member] | None:
        """Note a report, if there is one, and return all that are recent. None until all can have reported."""
        now = time.monotonic()
        if member is not None:
            self._reports[member.name] = (now, member)
        for name in [name for name, (when, _) in self._reports.items() if now - when > _EXPIRY_SECONDS]:
            del self._reports[name]
        if now - self._since < _EXPIRY_SECONDS:
            return None
        return [each for _, each in self._reports.values()]
