"""A process's file descriptors: how many of them clients may have, and where standard input and output lead."""

from __future__ import annotations

import os
import sys

_OTHERS = 1024
"""Enough for everything else: files, sockets of engines, downloads of images, connections that are just closing."""


def for_clients(limit: int) -> int:
    """Return how many of `limit` file descriptors are left for clients: at least half."""
    return max(limit // 2, limit - _OTHERS)


def print_to_the_log() -> None:
    """Send standard output to standard error, line by line, for this process and all that it starts.

    Whatever other people's code prints then goes to the log.
    """
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper


def read_nothing() -> None:
    """Leave nothing to read on standard input, which the parent holds open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
