"""Reads what is typed or piped."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.terminal import show

_REMEMBERED_LINES = 1000
_LONGEST_LINE = 16 * 2**20


class Interrupts:
    """Ctrl-C in a chat. It raises `KeyboardInterrupt` once, and only where that is expected."""

    def __init__(self) -> None:
        self._is_allowed = False

    def install(self) -> None:
        """Handle Ctrl-C from now on. Until then, it ends the process."""
        signal.signal(signal.SIGINT, self._interrupt)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C raise `KeyboardInterrupt` here."""
        self._is_allowed = True
        try:
            yield
        finally:
            self._is_allowed = False

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  the signature of signal handlers
        if self._is_allowed:
            self._is_allowed = False  # what is closed now must not be interrupted
            raise KeyboardInterrupt


def typed_lines(history_file: Path | None, interrupts: Interrupts) -> Iterator[str]:
    """Yield the messages that are typed. Ctrl-C discards a message. Twice, or Ctrl-D at the beginning, ends the chat.

    Raises `ConfigError` if the file cannot be used.
    """
    with _line_editing(history_file):
        lines: list[str] = []
        is_discarded = False
        while True:
            try:
                with interrupts.allowed():
                    lines.append(input("... " if lines else "> "))
            except KeyboardInterrupt:
                show()
                if is_discarded:
                    return
                show("Ctrl-C again, or Ctrl-D, ends the chat")
                is_discarded, lines = True, []
                continue
            except UnicodeDecodeError as error:  # another program's bytes were pasted
                show(f"This is not text in {error.encoding}.")
                lines = []
                continue
            except EOFError:
                show()
                return
            is_discarded = False
            if lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                continue
            message, lines = "\n".join(lines), []
            yield message.encode(errors="replace").decode()


def piped_lines() -> Iterator[str]:
    """Yield the lines of standard input. Raises `ConfigError` if one is too long for any server."""
    while line := sys.stdin.buffer.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise ConfigError(f"a line of the input is longer than {_LONGEST_LINE} bytes")
        yield line.decode(sys.stdin.encoding, errors="replace").rstrip("\r\n")


@contextlib.contextmanager
def _line_editing(history_file: Path | None) -> Iterator[None]:
    """Let `input` edit lines, and recall earlier ones."""
    try:
        import readline
    except ModuleNotFoundError:  # Python may be built without it
        yield
        return
    readline.set_history_length(_REMEMBERED_LINES)
    if history_file is None:
        yield
        return
    try:
        history_file.touch(mode=0o600)
        readline.read_history_file(history_file)
    except OSError as error:
        raise ConfigError(f"--history-file {history_file}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the chat is over, and nothing depends on the file
            readline.write_history_file(history_file)
