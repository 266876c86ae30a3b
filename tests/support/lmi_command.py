"""Runs a command of `lmi` in this process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, Any

from click.testing import CliRunner, Result

from lmi_handlers.commands.cli import main
from lmi_handlers.core import redaction


def lmi(*arguments: str, **options: Any) -> Result:
    """Run `lmi` and return its output and exit code. An error that the command does not explain fails the test."""
    result = CliRunner().invoke(main, arguments, **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ended(
    *arguments: str, folder: Path, environ: Mapping[str, str], content: bytes = b"", together: bool = False
) -> CompletedProcess[bytes]:
    """Run `lmi` as a process of its own would run, with its environment and its files, which its children get, too.

    A process would have to import everything, which takes longer than what it does. With `together`, what it writes to
    standard error is in its output, and its standard error is empty.
    """
    with contextlib.ExitStack() as stack:
        given, output, apart = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        errors = output if together else apart
        given.write(content)
        given.seek(0)
        with _elsewhere(folder, environ), _standard_files(given, output, errors):
            status = 0
            try:
                main.main(arguments, prog_name="lmi")
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
        for file in (output, apart):
            file.seek(0)
        return CompletedProcess(["lmi", *arguments], status, output.read(), apart.read())


@contextlib.contextmanager
def _elsewhere(folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """In this folder, with these variables and without a log. What the block does with signals and the log ends with it."""
    before, variables = Path.cwd(), dict(os.environ)
    log, level, source = logging.root.handlers, logging.root.level, logging._srcfile
    logging.root.handlers = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _set(environ)
    tempfile.tempdir = None  # as the variables say
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        _set(variables)
        tempfile.tempdir = None
        logging.root.handlers, logging._srcfile = log, source
        logging.root.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _set(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    redaction._configured.cache_clear()  # read once in a process


@contextlib.contextmanager
def _standard_files(*files: IO[bytes]) -> Iterator[None]:
    """These are standard input, output and error."""
    objects = sys.stdin, sys.stdout, sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        file.flush()
        os.dup2(file.fileno(), number)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_raw(0, "r", "<stdin>")), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_raw(1, "w", "<stdout>")), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(_raw(2, "w", "<stderr>")), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = objects
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)


def _raw(number: int, mode: str, name: str) -> io.FileIO:
    """The file with this number, named as Python names it."""
    file = io.FileIO(number, mode, closefd=False)
    file.name = name
    return file
