"""Ends a command by a signal, and removes unfinished results."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process, but not before the block has removed its unfinished files and its server."""
    before = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    except _Ended as ended:
        os._exit(128 + ended.number)  # without waiting for answers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001  as `signal` calls it
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # once is enough
    raise _Ended(number)


class _Ended(KeyboardInterrupt):
    """A signal has arrived. An event loop would hold back any other exception that a signal raises."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
