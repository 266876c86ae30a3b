"""Ends a process, and everything that it starts, with its parent."""

from __future__ import annotations

import os
import sys


def end_with_parent() -> None:
    """Make this process and everything it starts end with its parent, which holds the other end of standard input.

    A separate process watches for that: by then this one may be stopped, or native code may hold the GIL.
    """
    if os.getpgrp() != os.getpid():  # for example when started by hand
        os.setpgid(0, 0)
    watch = "import os, signal\nwhile os.read(0, 1024): pass\nos.killpg(0, signal.SIGKILL)"
    os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", watch], os.environ)
