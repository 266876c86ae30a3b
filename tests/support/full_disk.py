"""A file system of 2 MiB that a test fills. Only root can mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """A folder with 2 MiB of space, for TMPDIR. Skips the test where nothing can be mounted, but never on CI as root."""
    with tempfile.TemporaryDirectory(prefix="full-") as folder:
        if not sys.platform.startswith("linux") or os.geteuid() != 0:
            pytest.skip("only root can mount a file system")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            assert "CI" not in os.environ, mounted.stderr
            pytest.skip(f"no file system can be mounted: {mounted.stderr}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, name: str = "filler") -> Path:
    """Fill the disk with one file, and return that."""
    filler = folder / name
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            assert file.write(bytes(4096)) > 0
    return filler
