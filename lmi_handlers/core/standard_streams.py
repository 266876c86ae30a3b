"""Sends the prints of other people's code to the log, which is standard error."""

from __future__ import annotations

import os
import sys


def print_to_the_log() -> None:
    """Send standard output to standard error, line by line, for this process and all that it starts."""
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper


def read_nothing() -> None:
    """Leave nothing to read on standard input, which the parent holds open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
