"""What others wrote reaches a terminal escaped, whichever command prints it, and a file or a pipe as it is."""

from __future__ import annotations

import ast
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmi_command import ended
from paths import ROOT
from serving import ENVIRON, Server

from lmi_handlers.core.terminal import visible

CLIPBOARD = "\x1b]52;c;aGk=\x07"
"""Makes many terminals put "hi" into the clipboard."""

PRINTERS = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"}
OTHERS = {
    "lmi_handlers/core/terminal.py": "the writer itself",
    "backends/vllm/ray/inquiry.py": "answers the process that started it",
    "lmi_handlers/metrics/catalogue.py": "prints a page of the documentation",
    "backends/features.py": "prints a page of the documentation",
    "backends/options_page.py": "prints a page of the documentation",
}


def printers() -> Iterator[tuple[str, int]]:
    for folder in ("lmi_handlers", "backends", "formatters"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTERS:
                    yield name, node.lineno


def test_there_is_one_writer() -> None:
    found = list(printers())
    assert [place for place in found if place[0] not in OTHERS] == []
    assert {name for name, _ in found} >= {*OTHERS} - {"lmi_handlers/core/terminal.py"}


def on_a_terminal(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """Run `lmi` with standard output and standard error on a terminal, and return what it wrote."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=ENVIRON | (environ or {}), cwd=cwd
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            written += part
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_lmi_invoke(echo_server: Server, tmp_path: Path, raw: list[str]) -> None:
    (body := tmp_path / "body.json").write_text('{"inputs": "a\\u001b]52;c;aGk=\\u0007b"}')
    arguments = ["invoke", "--url", echo_server.url, f"@{body}", *raw]
    shown = on_a_terminal(*arguments, cwd=tmp_path)
    assert "\x1b" not in shown
    assert "aGk=" in shown
    piped = ended(*arguments, folder=tmp_path, environ=ENVIRON)
    assert piped.returncode == 0
    assert (CLIPBOARD.encode() in piped.stdout) is not bool(raw), "as it is, and JSON escapes it"


def test_lmi_check_and_errors(tmp_path: Path) -> None:
    (model := tmp_path / "m").mkdir()
    (model / "serving.properties").write_text(f"option.rolling_batch=echo\noption.custom={CLIPBOARD}\n")
    shown = on_a_terminal("check", "--model-dir", str(model), cwd=tmp_path, environ={"NO_COLOR": "1"})
    assert "\x1b" not in shown
    assert r"\x1b]52;c;aGk=" in shown
    shown = on_a_terminal("check", "--model-dir", f"{tmp_path}/{CLIPBOARD}", cwd=tmp_path, environ={"NO_COLOR": "1"})
    assert "\x1b" not in shown
    assert r"\x1b]52;c;aGk=" in shown


def test_lmi_run(tmp_path: Path) -> None:
    (model := tmp_path / "m").mkdir()
    (model / "model.py").write_text(
        "from djl_python import Output\n\n"
        "def handle(inputs):\n"
        "    if inputs.is_empty():\n"
        "        return None\n"
        f"    return Output().add({CLIPBOARD!r})\n"
    )
    (given := tmp_path / "in.json").write_text("{}")
    shown = on_a_terminal(
        "run", "--model-dir", str(model), "--input", str(given), cwd=tmp_path, environ={"NO_COLOR": "1"}
    )
    assert "\x1b" not in shown
    assert r"\x1b]52;c;aGk=" in shown


def test_what_is_escaped() -> None:
    assert visible("a\tb\nÄ 漢 👩‍🚀") == "a\tb\nÄ 漢 👩‍🚀"
    assert visible(CLIPBOARD + "\u202e\x9b2J\r") == r"\x1b]52;c;aGk=\x07\u202e\x9b2J\r"
