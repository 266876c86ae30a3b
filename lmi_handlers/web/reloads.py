"""The number of times that gunicorn has replaced all its workers (SIGHUP), in memory that the arbiter and its workers share."""

from __future__ import annotations

import mmap

_count = mmap.mmap(-1, 1)


def count_reload() -> None:
    """Called by the arbiter, before it starts new workers and ends the old ones."""
    _count[0] = (_count[0] + 1) % 256


def reloads() -> int:
    """Return the number of reloads, modulo 256."""
    return _count[0]
