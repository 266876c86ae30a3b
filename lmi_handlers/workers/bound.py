"""Runs a module as a program that ends with its parent, however that ends.

    python -m lmi_handlers.workers.bound MODULE ..

For programs that people start, too, and that know nothing of a parent.
"""

from __future__ import annotations

import os
import signal
import sys

from lmi_handlers.workers.parent import end_with_parent
from lmi_handlers.workers.program import command


def main() -> None:
    """Become the program."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray, for example, blocks SIGINT in what it starts
    os.execv(sys.executable, command(*sys.argv[1:]))  # noqa: S606  our own module, no shell


if __name__ == "__main__":
    main()
