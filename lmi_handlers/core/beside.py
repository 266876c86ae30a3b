"""Long work beside the event loop, which serves every client of a web worker and must not stand still for one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RunBeside(Protocol):
    """Calls a function where it does not hold up the event loop, and returns its result or raises its exception.

    Only the caller waits. The function may run on a thread of the operating system's that knows nothing of the event loop, so it
    must not touch sockets, queues or locks that gevent has patched. Python code takes turns there; a call into a library
    only helps if that releases the interpreter's lock.
    """

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`."""


def at_once(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function directly: for short work, or where each request has its own thread."""
    return function(*args, **kwargs)
