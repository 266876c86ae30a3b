"""docs/tutorial.md, from its beginning to its end: every command and every file, word for word, and what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from paths import ROOT
from serving import ENVIRON, free_port

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SERVES = re.compile(r"^(make|lmi) serve", re.MULTILINE)


class Reader:
    """Someone who works through the page, in a clone, with a terminal for the server and one for the rest."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.activation = ""
        environ = {name: value for name, value in ENVIRON.items() if not name.startswith(("LMI_", "OPTION_"))}
        # The page has the default port, which may be taken. OpenVINO is what `make serve` installs.
        self.environ = environ | {"PORT": str(self.port), "LMI_PORT": str(self.port), "LMI_HOST": "127.0.0.1"}

    def write(self, name: str, text: str) -> None:
        (self.clone / name).write_text(text)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        self.activation = next((line for line in script.splitlines() if line.startswith(". ")), self.activation)
        return subprocess.run(
            ["bash", "-e", "-c", f"{self.activation}\n{script}"],
            cwd=self.clone,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )

    def serve(self, script: str) -> None:
        """Run the server in the first terminal until `stop`. A later server takes the earlier one's place."""
        self.stop()
        with (self.clone / "server.log").open("wb") as log:
            self.server = subprocess.Popen(
                ["bash", "-e", "-c", script],
                cwd=self.clone,
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 280
        while not self._is_ready():
            waited = self.server.poll() is None and time.monotonic() < deadline
            assert waited, (self.clone / "server.log").read_text()
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/ping", timeout=20).ok
        except requests.ConnectionError:
            return False

    def stop(self) -> None:
        """Press Ctrl+C."""
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.wait(60)
            self.server = None


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
    (venv / ".serve").touch()
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


def pattern(expected: str) -> str:
    """An expected output, in which `...` stands for any text."""
    return ".*".join(re.escape(part.strip()) for part in expected.split("...")).replace("\\\n.*", ".*")


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_tutorial(reader: Reader) -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("\n```") // 2
    output, status = "", 0
    started = time.monotonic()
    for block in blocks:
        title, text = block["title"], block["text"].replace("8080", str(reader.port))
        where = f"line {PAGE.count(chr(10), 0, block.start()) + 1}"
        if title is None:
            assert block["language"] == "sh", where
            assert status == 0, output  # nothing has announced that the last command fails
            print(f"{time.monotonic() - started:.1f} s: {text.splitlines()[-1]}")
            if SERVES.search(text):
                reader.serve(text)
            else:
                done = reader.run(text)
                output, status = done.stdout, done.returncode
        elif title.startswith("Output"):
            assert status == int(title.partition("exit status ")[2] or 0), f"{where}: {output}"
            assert re.search(pattern(text), output, re.DOTALL), f"{where}: {output}"
            status = 0
        else:
            reader.write(title, text)
    assert status == 0, output
    print(f"{time.monotonic() - started:.1f} s: end")
