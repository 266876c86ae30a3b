"""The lowest versions that pyproject.toml allows, as pip's constraints: `python lowest_versions.py aws,otel`.

They are read from the installed distribution. Requirements of extras that are not named are left out.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement


def lowest_versions(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[str]:
    """Yield `name==version` for each requirement that applies here and has a lower bound."""
    wanted = ["", *extras]
    for line in requirements:
        item = Requirement(line)
        if item.marker is None or any(item.marker.evaluate({"extra": extra}) for extra in wanted):
            bounds = [bound.version for bound in item.specifier if bound.operator == ">="]
            yield from (f"{item.name}=={version}" for version in bounds)


if __name__ == "__main__":
    print(*lowest_versions(importlib.metadata.requires("lmi-handlers") or (), sys.argv[1].split(",")), sep="\n")
