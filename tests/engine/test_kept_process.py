"""How a kept process is ended, and what ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from subprocess import PIPE

import msgspec
import psutil
import pytest
from waiting import still_running, wait_until

from lmi_handlers.workers.process import KeptProcess, describe


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[KeptProcess, list[psutil.Process]]]:
    """Start a program that ends with its parent, and yield it with the processes that it has started."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = KeptProcess("lmi_handlers.workers.bound", *arguments, environ=environ, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Serving HTTP")
        children = psutil.Process(process.pid).children()
        assert children, "nothing watches for the end of the parent"
        yield process, children
    finally:
        process.end()


SERVER = ("http.server", "--bind", "127.0.0.1", "0")


def test_it_ends_with_its_pipe_and_takes_its_group_along() -> None:
    with started(*SERVER) as (process, children):
        process.close()
        assert process.wait(60) == -signal.SIGKILL
        assert still_running(children) == []


def test_a_process_that_is_asked_ends_by_itself() -> None:
    """A server finishes its requests first. Nothing that it has started stays."""
    with started(*SERVER) as (process, children):
        assert process.end(signal.SIGTERM, 60) == -signal.SIGTERM
        assert still_running(children) == []


def test_a_process_that_does_not_do_as_it_is_asked_is_killed() -> None:
    with started(*SERVER) as (process, children):
        assert process.end(signal.SIGCONT, 0.1) == -signal.SIGKILL
        assert still_running(children) == []


class Settings(msgspec.Struct):
    """More than a pipe holds, for a process that reads none of it."""

    text: str = "x" * 1_000_000


def test_a_process_that_ends_without_its_settings_says_why() -> None:
    """Here by its exit status: the module does not exist."""
    process = KeptProcess("lmi_handlers.workers.nothing", settings=Settings(), stderr=PIPE)
    wait_until(lambda: process.poll() is not None)
    assert process.stderr is not None
    assert b"No module named" in process.stderr.read()
    assert describe(process.end()) == "exit status 1"


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit status 0"), (75, "exit status 75"), (-9, "SIGKILL"), (-40, "signal 40")]
)
def test_an_exit_status_in_words(status: int, words: str) -> None:
    assert describe(status) == words
