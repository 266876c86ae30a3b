"""When a request ends although its answer is not complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lmi_handlers.core.errors import ClientDisconnected, DeadlineExceeded, LMIError, TextDeadline


class Cutoff(NamedTuple):
    """The monotonic `time` at which an answer ends with the text that it has, because `option` says so."""

    time: float
    option: str


class Deadline(msgspec.Struct, frozen=True):
    """A request fails at the monotonic `time`, and once `connected()` returns false. Its text ends at the `cutoff`."""

    time: float
    connected: Callable[[], bool] = lambda: True
    cutoff: Cutoff | None = None

    @property
    def left(self) -> float:
        """The number of seconds left. Negative if the time is up."""
        return self.time - time.monotonic()

    def reached(self, now: float) -> LMIError | None:
        """Return the error that ends the request at the monotonic time `now`, if any."""
        if not self.connected():
            return ClientDisconnected()
        if self.cutoff is not None and now >= self.cutoff.time:
            return TextDeadline(self.cutoff.option)
        return DeadlineExceeded() if now >= self.time else None

    def check(self, now: float) -> None:
        """Raise the error that ends the request at the monotonic time `now`, if any."""
        error = self.reached(now)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
