"""Prints a table of the code's structure, so that changes can be held against each other: `make structure`.

    python docs/site/structure_table.py [FOLDER]    of the checkout in FOLDER, by default this one

Rooms are what `lmi_handlers/` has in it, with `backends/` and `formatters/`. An arrow is a room that imports another, and
floors are the rooms on the longest way down. Lines are those of Python files, tests' data left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

PACKAGES = ("lmi_handlers", "backends", "formatters")
GUESTS = {
    *("laptop", "ray", "testing", "tools"),
    *("batch_transform", "bench", "chat", "console", "deploy", "sagemaker_runtime", "swagger_ui"),  # up to 1.0
}
"""Rooms of `lmi_handlers/` that the server does not need."""

SHORT = 40
"""Lines below which a file counts as short. An `__init__.py` does not count."""

NAMED = {"mindie": "MindIE", "aleph_alpha": "Aleph Alpha"}
"""APIs by their folders."""

Arrows = dict[str, set[str]]


def main(root: Path) -> None:
    """Print the table for the checkout in `root`."""
    for name, value in rows(root):
        print(f"{name:<46} {value}")


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the rows: name and value."""
    arrows = server_arrows(root)
    files = {name: python_files(root / name) for name in (*PACKAGES, "tests")}
    server = [path for path in files["lmi_handlers"] if not is_guest(path, root)]
    guests = [path for path in files["lmi_handlers"] if is_guest(path, root)]
    product = [path for name in PACKAGES for path in files[name]]
    yield "rooms of the server", str(len(arrows))
    yield "floors of the server", str(floors(arrows))
    yield "arrows of the server", str(sum(map(len, arrows.values())))
    for name, paths in (
        ("server", server),
        ("guests", guests),
        ("engines", files["backends"]),
        ("formatters", files["formatters"]),
        ("tests", files["tests"]),
    ):
        yield f"lines and files: {name}", f"{sum(map(lines, paths)):,} in {len(paths)}"
    short = [path for path in product if path.name != "__init__.py" and lines(path) < SHORT]
    yield f"files under {SHORT} lines, of {len(product)}", str(len(short))
    longest = max(product, key=lines)
    yield "longest file", f"{lines(longest)} ({longest.relative_to(root)})"
    for folder, api in NAMED.items():
        yield f"files that name {api} outside its folders", str(len(naming(api, folder, product)))


def python_files(folder: Path) -> list[Path]:
    """Return all Python files below `folder`, those of tests' data left out."""
    return sorted(path for path in folder.rglob("*.py") if "data" not in path.relative_to(folder).parts)


def is_guest(path: Path, root: Path) -> bool:
    """Tell whether a file of `lmi_handlers/` is a guest's."""
    return path.relative_to(root / "lmi_handlers").parts[0] in GUESTS


@cache
def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def naming(api: str, folder: str, paths: Iterable[Path]) -> list[Path]:
    """Return the files outside `folder` that name an API, however it is written."""
    pattern = re.compile(api.replace(" ", "[ _-]?"), re.IGNORECASE)
    return [path for path in paths if folder not in path.parts and pattern.search(path.read_text(encoding="utf-8"))]


def server_arrows(root: Path) -> Arrows:
    """Return which rooms of the server each of them imports."""
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    sys.path.remove(str(root))
    rooms = {*PACKAGES[1:], *graph.find_children("lmi_handlers")} - {f"lmi_handlers.{name}" for name in GUESTS}
    return {room: {other for other in rooms - {room} if _imports(graph, room, other)} for room in rooms}


def _imports(graph: grimp.ImportGraph, room: str, other: str) -> bool:
    return graph.direct_import_exists(importer=room, imported=other, as_packages=True)


def floors(arrows: Arrows) -> int:
    """Return the number of rooms on the longest way down. Raises `RecursionError` if there is a circle."""

    @cache
    def height(room: str) -> int:
        return 1 + max(map(height, arrows[room]), default=0)

    return max(map(height, arrows))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
