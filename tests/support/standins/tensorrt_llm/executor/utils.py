"""Errors and loops."""

from __future__ import annotations

import asyncio


class RequestError(RuntimeError):
    """The request cannot be answered."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
