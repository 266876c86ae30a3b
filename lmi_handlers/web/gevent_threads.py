"""Real operating system threads beside gevent's event loop. gevent's own "threads" all run on the loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from gevent.threadpool import ThreadPool

from lmi_handlers.core.event_loop import RunBeside

P = ParamSpec("P")
T = TypeVar("T")


def threads_beside() -> RunBeside:
    """Return a function that runs others on these threads. Call it once per process, in a gevent worker."""
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
                del error  # its traceback keeps this frame and its arguments alive
        return cast("T", value)

    return run_beside


_THREADS = 4
"""Maximum number of functions at a time. Others wait, which bounds the memory used."""

_SWITCH_INTERVAL = 0.0005
"""Seconds until Python code on these threads yields. The event loop may wait this long after every system call."""
