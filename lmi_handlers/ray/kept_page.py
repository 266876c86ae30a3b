"""A page that takes time to make, and that many may ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_KEPT_SECONDS = 1.0


class Kept:
    """A page that is made when somebody asks for it, once for all who ask within a second."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._task: asyncio.Task[bytes] | None = None
        self._made = 0.0

    async def get(self) -> bytes:
        """Return the page. Raises what `make` raises."""
        if self._task is None or (self._task.done() and time.monotonic() - self._made > _KEPT_SECONDS):
            self._task = asyncio.create_task(self._timed())
        return await asyncio.shield(self._task)  # others may wait for it, too

    async def _timed(self) -> bytes:
        try:
            return await self._make()
        finally:
            self._made = time.monotonic()
