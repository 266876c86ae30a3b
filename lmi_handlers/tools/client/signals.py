"""Ends a command by a signal, and removes unfinished results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

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


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in an event loop. Within `ended_by_signals`, a signal cancels it first.

    An exception that is raised in the middle of an event loop may cost it a callback, for which it then waits forever.
    """
    received: list[int] = []

    async def cancelled_by_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)

        def cancel(number: int, frame: object) -> None:  # noqa: ARG001
            _ignore()
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        before = {number: signal.signal(number, cancel) for number in _SIGNALS}
        try:
            return await task
        finally:
            if not received:
                for number, handler in before.items():
                    signal.signal(number, handler)

    try:
        return asyncio.run(cancelled_by_signals())
    finally:
        if received:
            raise _Ended(received[0])


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001  as `signal` calls it
    _ignore()
    raise _Ended(number)


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # once is enough


class _Ended(BaseException):
    """A signal has arrived."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
