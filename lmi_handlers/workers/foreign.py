"""Runs a program that is not ours, which ends with its parent, however that ends.

    python -m lmi_handlers.workers.foreign PROGRAM ..

It leads a process group, as every kept process does. Its standard input is empty.
"""

from __future__ import annotations

import os
import sys

from lmi_handlers.workers.parent import end_with_parent


def main() -> None:
    """Become the program."""
    end_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # the pipe of life is not the program's to read
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  no shell
    except OSError as error:
        raise SystemExit(f"{sys.argv[1]}: {error.strerror}") from error


if __name__ == "__main__":
    main()
