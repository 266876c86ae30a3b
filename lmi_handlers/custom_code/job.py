"""Requests in the pool: those that wait, and what a web worker is told about each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

import msgspec

from lmi_handlers.core.errors import LMIError, QueueFull
from lmi_handlers.custom_code.messages import Chunk, End, Head, Invoke
from lmi_handlers.custom_code.streams import frame
from lmi_handlers.engine.admission import DynamicBatch


class Job:
    """A request. `left` is set once nobody waits for its answer; `ended` is done once the answer is complete."""

    def __init__(self, invoke: Invoke, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self.invoke = invoke
        self.arrived = loop.time()
        self.left = asyncio.Event()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._writer = writer

    async def send(self, message: Head | Chunk | End) -> None:
        """Send a part of the answer, and wait while the web worker has much unread."""
        if not self.left.is_set():
            self._writer.write(frame(msgspec.structs.replace(message, index=0)))
            with contextlib.suppress(OSError):  # the web worker closes the connection to abort the request
                await self._writer.drain()
        if isinstance(message, End) and not self.ended.done():
            self.ended.set_result(None)

    async def fail(self, error: LMIError) -> None:
        """End the request with an error."""
        await self.send(End(0, str(error), type(error).__name__))


class WaitingJobs:
    """The jobs that wait for a process, in order of arrival. At most `size` may wait while no process is free."""

    def __init__(self, size: int, admission: DynamicBatch) -> None:
        self._size = size
        self._admission = admission
        self._jobs: deque[Job] = deque()
        self._changed = asyncio.Condition()
        self._takers = 0

    def __len__(self) -> int:
        return len(self._jobs)

    async def add(self, job: Job) -> None:
        """Add a job at the end. Raises `QueueFull`."""
        if len(self._jobs) >= self._size + self._takers:
            raise QueueFull(f"{len(self._jobs)} requests are waiting already (job_queue_size={self._size})")
        self._jobs.append(job)
        async with self._changed:
            self._changed.notify_all()

    async def put_back(self, jobs: list[Job]) -> None:
        """Add jobs that no process has seen at the front."""
        self._jobs.extendleft(reversed(jobs))
        async with self._changed:
            self._changed.notify_all()

    def discard(self, job: Job) -> None:
        """Remove a job if it is still waiting."""
        with contextlib.suppress(ValueError):
            self._jobs.remove(job)

    async def take(self) -> list[Job]:
        """Wait for a batch, and remove it."""
        self._takers += 1
        try:
            async with self._changed:
                while not (room := self._room()):
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), self._delay())
                return [self._jobs.popleft() for _ in range(room)]
        finally:
            self._takers -= 1

    def _room(self) -> int:
        return self._admission.room(waiting=len(self._jobs), oldest_wait=self._oldest_wait(), running=0)

    def _delay(self) -> float | None:
        return self._admission.wait(self._oldest_wait()) if self._jobs else None

    def _oldest_wait(self) -> float:
        return asyncio.get_running_loop().time() - self._jobs[0].arrived if self._jobs else 0.0
