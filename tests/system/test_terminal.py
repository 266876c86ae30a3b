"""What an operator sees: readable lines on a terminal, JSON in a log file."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import raises, says
from serving import free_port
from terminal import COLOUR, Terminal
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import JsonLines, TextLines, log_format

LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S.*")


class ServeTerminal(Terminal):
    """`lmi serve` with the echo backend on its own pseudo-terminal."""

    def __init__(self, directory: Path, *arguments: str, properties: str = "", **environ: str) -> None:
        (directory / "serving.properties").write_text("option.rolling_batch=echo\n" + properties)
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        address = ("--host", "127.0.0.1", "--port", str(port))
        super().__init__("serve", "--model-dir", str(directory), *address, *arguments, **environ)

    def interrupt(self) -> int:
        """Type Ctrl-C, and return the exit status."""
        self.type("\x03")
        return self.ended()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[ServeTerminal]:
    shown = ServeTerminal(tmp_path, properties="option.no_such_option=1\n")
    yield shown
    shown.close()


def test_a_terminal_shows_readable_lines_and_no_traceback_on_ctrl_c(terminal: ServeTerminal) -> None:
    terminal.wait_for(f"listening on {terminal.url}")
    terminal.wait_for("engine ready")
    wait_until(lambda: requests.get(f"{terminal.url}/ping", timeout=60).status_code == 200)
    assert requests.post(f"{terminal.url}/invocations", json={"inputs": "hello"}, timeout=60).status_code == 200
    # Clients choose the path. It must not control the terminal.
    answer = requests.post(f"{terminal.url}/predictions/%1b%5b2J", json={"inputs": "hello"}, timeout=60)
    assert answer.status_code == 404
    terminal.wait_for("path=/invocations status=200 prompt_tokens=")
    assert "\x1b[2J" not in terminal.raw
    assert terminal.interrupt() == 0
    lines = [line for line in terminal.text.splitlines() if line.removeprefix("^C")]
    assert lines[0].startswith("lmi: warning: unknown option option.no_such_option")
    assert [line for line in lines[1:] if not LINE.fullmatch(line.removeprefix("^C"))] == []
    assert "\x1b[32mINFO" in terminal.raw
    assert "lmi: \x1b[33m\x1b[1mwarning\x1b[0m: " in terminal.raw


@pytest.mark.parametrize("shown", ["lmi: warning: ", "listening on", "engine ready"])
def test_ctrl_c_during_startup_shows_no_traceback(terminal: ServeTerminal, shown: str) -> None:
    """Whatever the server or its child processes are importing at that moment."""
    terminal.wait_for(shown)
    assert terminal.interrupt() in (0, -signal.SIGINT)
    assert "Traceback" not in terminal.text
    assert "KeyboardInterrupt" not in terminal.text
    assert "SIGKILL" not in terminal.text


def test_ctrl_c_ends_a_web_worker_that_was_only_just_forked(tmp_path: Path) -> None:
    """It has not begun when the signal comes. On a busy machine, this may take a moment."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(3))\n"
    )
    shown = ServeTerminal(tmp_path, PYTHONPATH=str(tmp_path), NO_COLOR="1")
    try:
        shown.wait_for("listening on")
        assert shown.interrupt() in (0, -signal.SIGINT)
        assert "SIGKILL" not in shown.text
        assert "\x1b" not in shown.raw, "NO_COLOR turns colours off"
    finally:
        shown.close()


def test_an_error_at_startup_is_one_coloured_line(tmp_path: Path) -> None:
    shown = ServeTerminal(tmp_path, properties="option.max_rolling_batch_size=many\n")
    try:
        assert shown.process.wait(240) == 1
        [line] = shown.text.splitlines()
        assert line.startswith("lmi: error: ")
        assert shown.raw.startswith("lmi: \x1b[31m\x1b[1merror\x1b[0m: ")
    finally:
        shown.close()


@pytest.mark.long
def test_log_format_json_applies_to_a_terminal(tmp_path: Path) -> None:
    shown = ServeTerminal(tmp_path, LOG_FORMAT="json")
    try:
        shown.wait_for("listening on")
        shown.wait_for("engine ready")
        messages = [json.loads(line)["message"] for line in shown.text.splitlines()]
        assert f"listening on {shown.url}" in messages
    finally:
        shown.close()


def test_an_unknown_log_format_is_an_error(tmp_path: Path) -> None:
    shown = ServeTerminal(tmp_path, LOG_FORMAT="xml")
    try:
        assert shown.process.wait(240) == 1
        [line] = shown.text.splitlines()
        assert line.startswith("lmi: error: ")
        assert says(line, "LOG_FORMAT 'xml': json, text")
    finally:
        shown.close()


class Stream:
    def __init__(self, *, terminal: bool) -> None:
        self.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("given", "terminal", "expected"),
    [("", True, "text"), ("", False, "json"), ("JSON", True, "json"), ("text", False, "text")],
)
def test_the_format_depends_on_log_format_and_the_stream(given: str, terminal: bool, expected: str) -> None:
    assert log_format({"LOG_FORMAT": given}, Stream(terminal=terminal)) == expected  # type: ignore[arg-type]  # the only method that is used
    with raises(ConfigError, "LOG_FORMAT '%(message)s': json, text"):
        log_format({"LOG_FORMAT": "%(message)s"}, Stream(terminal=terminal))  # type: ignore[arg-type]


def record(message: str, name: str = "lmi_handlers.x", **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "name": name, "levelno": logging.INFO, "levelname": "INFO"})
    vars(made).update(extra)
    return made


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (record("a"), "INFO    a"),
        (record("a", "urllib3.pool"), "INFO    urllib3.pool: a"),
        (record("a", status=200, error=None, took=1.5), "INFO    a  status=200 took=1.5"),
        (record("a", reasons=["length", "eos"], empty=""), 'INFO    a  reasons=length,eos empty=""'),
        (record("a", phase="loading the model"), 'INFO    a  phase="loading the model"'),
        (record("a\x1b[2Jb\x9b1m", path="/\r\n\x1b[2J"), 'INFO    a\\x1b[2Jb\\x9b1m  path="/\\r\\n\\u001b[2J"'),
        (record("two\nlines"), "INFO    two\nlines"),
        (record("a", exception="E\n  at\x1b", n=1), "INFO    a  n=1\nE\n  at\\x1b"),
        (record("a", exception=None), "INFO    a"),
    ],
)
def test_records_are_rendered_as_text(made: logging.LogRecord, shown: str) -> None:
    assert TextLines(coloured=False).format(made).partition(" ")[2] == shown
    assert COLOUR.sub("", TextLines(coloured=True).format(made)).partition(" ")[2] == shown


def test_control_characters_in_a_traceback_are_escaped() -> None:
    try:
        raise ValueError("\x1b[2J\nnext")
    except ValueError:
        made = record("a", exc_info=sys.exc_info())
    assert TextLines(coloured=False).format(made).endswith("\nValueError: \\x1b[2J\nnext")


def test_a_json_line_moves_no_cursor_and_reverses_no_text() -> None:
    """Tools such as `kubectl logs` print lines as they are. U+009B begins an escape sequence on some terminals."""
    text = "\x1b[31m \x9b31m \u202e \u2028 ü 漢 \N{PARTY POPPER}"
    line = JsonLines().format(logging.makeLogRecord({"msg": text}))
    assert json.loads(line)["message"] == text
    assert [character for character in line if not character.isprintable()] == []


def test_records_are_rendered_as_json_with_the_same_fields() -> None:
    line = json.loads(JsonLines().format(record("a\x1b", path="/\n", error=None)))
    assert {key: line[key] for key in ("level", "message", "path", "error")} == {
        "level": "INFO",
        "message": "a\x1b",
        "path": "/\n",
        "error": None,
    }
