"""Starts a program so that Ctrl-C during its imports ends the process at once, without a traceback.

    lmi ..                                                     the command line
    python -m lmi_handlers.commands.interruptible lmi_handlers.commands.cli ..   any module, as `python -m` would run it

By default Python raises `KeyboardInterrupt` wherever it happens to be. Here SIGINT keeps the system's default action
until the program installs its own handler, once it has something to clean up.

`lmi serve` starts the second from the first, with SIGINT blocked: Ctrl-C waits until the new Python has come here.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Entry point of `lmi`."""
    _end_at_once()
    from lmi_handlers.commands.cli import main as command_line

    command_line()


def _end_at_once() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


if __name__ == "__main__":
    _end_at_once()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
