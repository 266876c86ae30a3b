"""The kept process's side: it reads its settings, leaves signals to its parent, and ends with it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TypeVar

import msgspec

T = TypeVar("T")


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM, which all processes of a terminal or a container get. The parent decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def read_settings(kind: type[T]) -> T:
    """Return the settings, the first line on standard input. What follows them is left unread."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(sys.stdin.fileno(), 1 << 16)
        if not chunk:
            raise SystemExit("this process expects its settings on standard input")
        line += chunk
    return msgspec.json.decode(line, type=kind)


def wait_for_end_of_parent() -> None:
    """Return once the parent, and all others that hold the other end of standard input, are gone."""
    while os.read(sys.stdin.fileno(), 1024):  # not `sys.stdin`, whose lock would interfere with this process's exit
        pass


def end_with_parent() -> None:
    """Make this process and everything it starts end with its parent, which holds the other end of standard input.

    A separate process watches for that: by then this one may be stopped, or native code may hold the GIL.
    """
    if os.getpgrp() != os.getpid():  # for example when started by hand
        os.setpgid(0, 0)
    watch = "import os, signal\nwhile os.read(0, 1024): pass\nos.killpg(0, signal.SIGKILL)"
    os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", watch], os.environ)
