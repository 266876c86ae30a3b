"""Runs one of our modules as a program of its own, such as `python <this file> lmi_handlers.engine.supervisor`.

`python -m` puts the working directory first on `sys.path`. If that is a model's folder, its `queue.py` would take the
place of the standard library's. Python 3.11 has `-P` against that; this works with 3.10, too.
"""

from __future__ import annotations

import sys


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, whatever the working directory contains."""
    return [sys.executable, __file__, module, *arguments]


def _main() -> None:
    """Remove this file's folder from `sys.path`, and run the module as `python -m` would."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    root = __file__.rsplit("/", 3)[0]
    if root not in sys.path:  # a clone that is not installed
        sys.path.insert(0, root)
    import runpy

    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
