"""Stand-ins for engine libraries that need hardware: importable where they are wanted, and neither before nor after."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STANDINS = str(Path(__file__).parent / "standins")


@contextmanager
def standin(library: str) -> Iterator[None]:
    """Let `import library` find `tests/standins/<library>` in this block.

    At its end the library is forgotten, and so are the modules of the backend of that name, which were imported with it.
    """
    sys.path.insert(0, _STANDINS)
    try:
        yield
    finally:
        sys.path.remove(_STANDINS)
        for name in list(sys.modules):
            if name == library or name.startswith((f"{library}.", f"backends.{library}.")):
                del sys.modules[name]
