"""The number of a process's file descriptors for clients."""

from __future__ import annotations

_OTHERS = 1024
"""Enough for everything else: files, sockets of engines, downloads of images, connections that are just closing."""


def for_clients(limit: int) -> int:
    """Return how many of `limit` file descriptors are left for clients: at least half."""
    return max(limit // 2, limit - _OTHERS)
