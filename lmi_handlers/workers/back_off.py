"""Delays between the restarts of a process that keeps dying, and the limit after which it is given up."""

from __future__ import annotations

from collections import deque

_FIRST = 0.5
_LONGEST = 30.0


def back_off(failures: int, *, first: float = _FIRST, longest: float = _LONGEST) -> float:
    """Return the seconds until the next start after so many failures in a row: none after 0, then twice as many each time."""
    return min(first * 2.0 ** min(failures - 1, 10), longest) if failures else 0.0


class Restarts:
    """Decides whether and when a dead process may be restarted: at most `limit` times within `window` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        self._limit = limit
        self._window = window
        self._deaths: deque[float] = deque()

    def after_death(self, now: float) -> float | None:
        """Return the number of seconds to wait before the next start, or None to give up."""
        while self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        if len(self._deaths) >= self._limit:
            return None
        self._deaths.append(now)
        return back_off(len(self._deaths))
