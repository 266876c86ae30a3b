"""Ctrl-C at many moments of a command: it ends, and shows no traceback."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import free_port
from terminal import Terminal

IMPORTED = {"PYTHONPROFILEIMPORTTIME": "1"}
"""With it, Python writes the name of each module once it has been imported."""


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def end_with_ctrl_c(terminal: Terminal) -> None:
    try:
        terminal.type("\x03")
        assert terminal.ended() in (0, -signal.SIGINT, 128 + signal.SIGINT)
        assert [words for words in ("Traceback", "KeyboardInterrupt", "SIGKILL") if words in terminal.text] == []
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("check", "click"),
        ("check", "lmi_handlers.config.options"),
        ("check", "tokenizers"),
        ("serve", "click"),
        ("serve", "lmi_handlers.config.options"),
        ("serve", "gunicorn.arbiter"),
        ("chat", "click"),
        ("chat", "http.client"),
        ("bench", "click"),
        ("bench", "aiohttp"),
    ],
)
def test_ctrl_c_during_imports(command: str, module: str, silent_server: socket.socket, tmp_path: Path) -> None:
    """Whichever process imports the module: the command, or one that it has started."""
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    asks = ("--url", f"http://127.0.0.1:{silent_server.getsockname()[1]}")
    serves = ("--model-dir", str(tmp_path), "--host", "127.0.0.1", "--port", str(free_port()))
    terminal = Terminal(command, *(asks if command in ("chat", "bench") else serves), **IMPORTED)
    terminal.wait_for(f" {module}\n")
    end_with_ctrl_c(terminal)


@pytest.mark.parametrize("command", ["chat", "bench"])
def test_ctrl_c_while_a_server_does_not_answer(command: str, silent_server: socket.socket) -> None:
    terminal = Terminal(command, "--url", f"http://127.0.0.1:{silent_server.getsockname()[1]}")
    connection, _ = silent_server.accept()
    with connection:
        end_with_ctrl_c(terminal)
