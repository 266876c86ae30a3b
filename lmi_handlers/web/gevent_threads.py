"""Threads of the operating system beside gevent's event loop, whose own threads are all on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from gevent.threadpool import ThreadPool

from lmi_handlers.core.beside import RunBeside

P = ParamSpec("P")
T = TypeVar("T")


def threads_beside() -> RunBeside:
    """Return what runs functions on such threads. For a worker that gevent has patched, once per process."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    pool = ThreadPool(_THREADS)

    def run_beside(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        def outcome() -> tuple[T | None, Exception | None]:
            try:
                return function(*args, **kwargs), None
            except Exception as error:  # noqa: BLE001  gevent would print it, though it is raised below
                return None, error

        value, error = pool.apply(outcome)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and with it the arguments
        return cast("T", value)

    return run_beside


_THREADS = 4
"""Long requests that are prepared at a time; others wait, which bounds the memory that this takes."""

_SWITCH_INTERVAL = 0.0005
"""Seconds after which Python code on such a thread gives way. The loop may have to wait so long at every system call."""
