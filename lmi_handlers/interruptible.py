"""Starts a program so that Ctrl-C during its imports ends the process at once, without a traceback.

    lmi ..                                                     the command line
    python -m lmi_handlers.interruptible lmi_handlers.cli ..   any module, as `python -m` would run it

By default Python raises `KeyboardInterrupt` wherever it happens to be. Here SIGINT keeps the system's default action
until the program installs its own handler, once it has something to clean up.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Entry point of `lmi`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lmi_handlers.cli import main as command_line

    command_line()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
