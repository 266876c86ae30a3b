"""docs/tutorial.md, from its beginning to its end: every command and every file, word for word, and what it prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_reader import Reader
from doc_snippets import snippets
from paths import ROOT


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with a clone in which everything has been installed, so that make has nothing to do but to serve."""
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv", "build"}:
            (tmp_path / path.name).symlink_to(path)
    venv = tmp_path / ".venv"
    venv.mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("."):
            (venv / path.name).symlink_to(path)
    for marker in (".pip", ".serve"):
        (venv / marker).touch()
    reader = Reader(tmp_path, runs_all=True)
    yield reader
    reader.stop()


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_tutorial(reader: Reader) -> None:
    started = time.monotonic()
    for snippet in snippets(ROOT / "docs" / "tutorial.md"):
        print(f"{time.monotonic() - started:.1f} s: {snippet.text.splitlines()[-1]}")
        reader.read(snippet)
    reader.finish()
    print(f"{time.monotonic() - started:.1f} s: end")
