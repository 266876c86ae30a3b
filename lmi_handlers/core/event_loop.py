"""Long work in a web worker, which serves all its clients on one event loop and must not block for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RunBeside(Protocol):
    """Calls a function without blocking the event loop, and returns its result or raises its exception.

    Only the caller waits. The function may run on an operating system thread that knows nothing of the event loop. It
    must therefore not touch sockets, queues or locks that gevent has patched. Python code still takes turns with the
    event loop; a library call only runs in parallel if it releases the GIL.
    """

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`."""


def at_once(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function directly. For short work, or if each request has its own thread."""
    return function(*args, **kwargs)


def give_way() -> None:
    """Let every other request of this worker that is ready run. Call it after about each millisecond of work."""
    time.sleep(0)  # gevent's version once gunicorn has patched it; with threads, it releases the GIL
