"""Stand-ins for engine libraries that need special hardware, importable only within a `with` block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STANDINS = str(Path(__file__).parent / "standins")


@contextmanager
def standin(library: str) -> Iterator[None]:
    """Make `import library` find `tests/support/standins/<library>` within the block.

    Afterwards, the library and the modules of its backend are removed from `sys.modules`, except for the backend's
    `options`, which do not import the library.
    """
    sys.path.insert(0, _STANDINS)
    try:
        yield
    finally:
        sys.path.remove(_STANDINS)
        for name in sys.modules.keys() - {f"backends.{library}.options"}:
            if name == library or name.startswith((f"{library}.", f"backends.{library}.")):
                del sys.modules[name]
