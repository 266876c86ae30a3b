"""Starts a program whose imports Ctrl-C may interrupt: the process then ends at once, not with a traceback from an import.

    lmi ..                                                 the command line
    python -m lmi_handlers.interruptible gunicorn -c ..    any module, as `python -m` would run it

Python raises `KeyboardInterrupt` wherever it happens to be. Here SIGINT has its default action until the program, once it
has something to clean up, handles it.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Entry of `lmi`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lmi_handlers.cli import main as command_line

    command_line()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
