"""Descriptions of AWS's services, which take boto3 longer to read than all its requests in a test."""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import JSONFileLoader


@functools.cache
def read_once() -> None:
    """Keep them in this process, in which each command has a session of its own, and each session reads them again."""
    read = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))

    def load_file(_loader: JSONFileLoader, path: str) -> Any:
        return read(path)

    JSONFileLoader.load_file = load_file  # type: ignore[assignment, method-assign]
