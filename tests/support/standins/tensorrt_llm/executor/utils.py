"""Errors and loops."""

from __future__ import annotations

import asyncio


class RequestError(RuntimeError):
    """The request at hand cannot be answered."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
