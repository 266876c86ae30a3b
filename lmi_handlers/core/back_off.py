"""How long whoever keeps a process running waits before the next start."""

from __future__ import annotations

_FIRST = 0.5
_LONGEST = 30.0


def back_off(failures: int) -> float:
    """Return the seconds until the next start after so many failures in a row: none after 0, then twice as many each time."""
    return min(_FIRST * 2.0 ** min(failures - 1, 10), _LONGEST) if failures else 0.0
