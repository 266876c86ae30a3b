"""Requests in the pool, and the messages to a web worker about each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import msgspec

from lmi_handlers.core.errors import LMIError, QueueFull
from lmi_handlers.custom_code.messages import BodyChunk, End, Head, Invoke, failed, failure_of
from lmi_handlers.engine.admission import DynamicBatch
from lmi_handlers.workers.channel import MAX_MESSAGE_SIZE, frame

MAX_BATCH_SIZE = MAX_MESSAGE_SIZE - (1 << 20)
"""Bytes that the requests of one batch may have together, beside what the message adds to them."""

_MUCH = 1 << 16
"""Bytes that a web worker may have left unread. asyncio's default for `drain`."""


class PoolJob:
    """A request. `ended` is done once the answer is complete; `left` is true once nobody waits for it any more.

    The answer is written to `writer`, if there is one.
    """

    def __init__(self, invoke: Invoke, writer: asyncio.StreamWriter | None) -> None:
        loop = asyncio.get_running_loop()
        self.invoke = invoke
        self.arrived = loop.time()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.left = False
        self.on_leave: Callable[[], object] = lambda: None
        self._writer = writer

    @property
    def size(self) -> int:
        """Bytes of the request's content and headers."""
        invoke = self.invoke
        headers = sum(len(name) + len(value) for name, value in invoke.properties.items())
        return headers + sum(len(name) + len(data) for name, data in invoke.parts)

    def send(self, message: Head | BodyChunk | End) -> None:
        """Send a part of the answer. After its end, or once nobody waits, nothing is sent."""
        if self.ended.done():
            return
        if self._writer is not None and not self.left:
            self._writer.write(frame(msgspec.structs.replace(message, index=0)))
        if isinstance(message, End):
            self.ended.set_result(None)

    def fail(self, error: LMIError) -> None:
        """End the request with an error, unless it has ended."""
        self.send(failed(0, error))

    def leave(self) -> None:
        """Note that nobody waits any more."""
        self.left = True
        self.on_leave()

    @property
    def is_behind(self) -> bool:
        """Tell whether the web worker has much unread."""
        if self._writer is None or self.left:
            return False
        return self._writer.transport.get_write_buffer_size() > _MUCH

    async def caught_up(self) -> None:
        """Wait until the web worker has read most of it, or has left."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                await self._writer.drain()


class OwnJob(PoolJob):
    """A call that the pool itself makes. `status`, `text` and `error` are its answer."""

    def __init__(self, invoke: Invoke) -> None:
        super().__init__(invoke, None)
        self.status = 0
        self.text = b""
        self.error: LMIError | None = None

    def send(self, message: Head | BodyChunk | End) -> None:
        """Keep a part of the answer."""
        match message:
            case Head():
                self.status = message.code
            case BodyChunk():
                self.text = message.data
            case End():
                self.error = self.error or failure_of(message)
        super().send(message)


class WaitingJobs:
    """The jobs that wait for a process, in order of arrival: at most `size` of them."""

    def __init__(self, size: int, admission: DynamicBatch) -> None:
        self._size = size
        self._admission = admission
        self._jobs: deque[PoolJob] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: PoolJob) -> None:
        """Add a job at the end. Raises `QueueFull`."""
        if len(self._jobs) >= self._size:
            raise QueueFull(f"{len(self._jobs)} requests are waiting already (job_queue_size={self._size})")
        self._jobs.append(job)

    def discard(self, job: PoolJob) -> None:
        """Remove a job if it is still waiting."""
        with contextlib.suppress(ValueError):
            self._jobs.remove(job)

    def clear(self) -> list[PoolJob]:
        """Remove all jobs, and return them."""
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def take(self) -> list[PoolJob]:
        """Remove a batch that may start now, and that fits into one message. Returns nothing if there is none."""
        room = self._admission.room(waiting=len(self._jobs), oldest_wait=self.oldest_wait(), running=0)
        jobs: list[PoolJob] = []
        size = 0
        while len(jobs) < room and (not jobs or size + self._jobs[0].size <= MAX_BATCH_SIZE):
            size += self._jobs[0].size
            jobs.append(self._jobs.popleft())
        return jobs

    def delay(self) -> float | None:
        """Return the seconds after which a batch may start that is not complete. None if there is none."""
        return self._admission.wait(self.oldest_wait()) if self._jobs else None

    def oldest_wait(self) -> float:
        """Return the seconds that the first job has waited."""
        return asyncio.get_running_loop().time() - self._jobs[0].arrived if self._jobs else 0.0
