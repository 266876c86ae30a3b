"""The pool's side of one process that runs the code: starts it, calls it, and ends it with all that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError, DeadlineExceeded, InvalidRequest, LoadFailed, RequestFailed
from lmi_handlers.custom_code.job import OwnJob, PoolJob
from lmi_handlers.custom_code.messages import (
    NOT_LOADED,
    AbortBatch,
    Batch,
    BodyChunk,
    CodeSettings,
    End,
    FromCode,
    Head,
    Invoke,
    Loaded,
    LoadError,
    Pause,
    Resume,
)
from lmi_handlers.custom_code.streams import receive
from lmi_handlers.workers.channel import MessageTooLong, ProtocolError, frame
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KILL_TIMEOUT, KeptProcess, describe

_OVERDUE = 2.0
"""Seconds after which a process that should have said that its code hangs is assumed to hang itself."""

_LINGER = 0.5
"""Seconds to wait for the last messages after a process's end, and for its end after them."""

_GRACE = 1.0
"""Seconds in which a call that is late, and was told to end, must end."""

logger = logging.getLogger(__name__)

_decoder = msgspec.msgpack.Decoder(FromCode)


class CodeError(Exception):
    """The code cannot be used. `error` says why, `traceback` has the author's frames."""

    def __init__(self, error: ConfigError | LoadFailed, traceback: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.traceback = traceback


class _Answer:
    """The answer of a process to a job so far. `ended` is done once it has ended the answer, or has ended itself."""

    def __init__(self, job: PoolJob) -> None:
        self.job = job
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pause: asyncio.Future[None] | None = None
        self._head: Head | None = None

    @property
    def streams(self) -> bool:
        return self._head is not None and self._head.streams

    def add(self, message: Head | BodyChunk | End) -> None:
        """Pass on a part of the answer. Raises `ProtocolError`."""
        if isinstance(message, Head) is (self._head is not None) and not isinstance(message, End):
            raise ProtocolError("an answer must have one head, before its content")
        if isinstance(message, Head):
            self._head = message
        self.job.send(message)
        if isinstance(message, End):
            self.ended.set_result(None)

    def fail(self, cause: str) -> None:
        """End the answer, because the process has ended."""
        self.job.fail(RequestFailed(cause))
        self.ended.set_result(None)


class CodeRunner:
    """A process that has loaded the code. `ended` is done once it has ended, for whatever reason.

    `was_used` is true after the first call, `idle_since` the event loop's time at the end of the latest one.
    """

    def __init__(
        self,
        code: CustomCode,
        process: KeptProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._code = code
        self._name = f"the process that runs {code.function}"
        self._process = process
        self._reader = reader
        self._writer = writer
        self._max_calls = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._answers: dict[int, _Answer] = {}
        self._number = 1
        self._cause: str | None = None
        self._is_leaving = False
        self._asking = 0
        self._reading: asyncio.Future[None] | None = None
        self.was_used = False
        self.idle_since = asyncio.get_running_loop().time()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._wait, args=(asyncio.get_running_loop(),), daemon=True).start()

    @classmethod
    async def start(cls, code: CustomCode, place: int, timeout: float) -> CodeRunner:
        """Start a process and load the code, which may take `timeout` seconds. Raises `CodeError`."""
        device = str(place % code.gpus) if code.gpus else "-1"
        load = CodeSettings(code, {**code.properties, "device_id": device}, time.monotonic() + timeout)
        try:
            ours, its = socket.socketpair()
            with its, contextlib.ExitStack() as stack:
                stack.callback(ours.close)
                process = await asyncio.to_thread(
                    KeptProcess,
                    "lmi_handlers.custom_code.child",
                    str(its.fileno()),
                    settings=load,
                    environ=child_environment(os.environ, gets_models=code.options is not None),
                    pass_fds=(its.fileno(),),
                )
                stack.pop_all()
        except OSError as error:  # too many processes or open files
            raise CodeError(LoadFailed(f"{code.path}: its process cannot be started: {error}")) from error
        runner = cls(code, process, *await asyncio.open_unix_connection(sock=ours))
        try:
            await asyncio.wait_for(runner._load(), timeout + _OVERDUE)
        except asyncio.TimeoutError:
            await runner.end()
            runner.close()
            raise CodeError(ConfigError(f"{code.path}: {NOT_LOADED}")) from None
        except BaseException:
            await runner.end()
            runner.close()
            raise
        runner._reading = asyncio.ensure_future(runner._read())
        return runner

    @property
    def free(self) -> int:
        """The number of calls that may be made now."""
        return 0 if self._is_leaving or self._asking else self._max_calls - len(self._calls)

    @property
    def idle(self) -> float:
        """The seconds since the latest call, 0 during one."""
        return 0.0 if self._calls else asyncio.get_running_loop().time() - self.idle_since

    async def ask(self, adapter_function: str, invoke: Invoke, timeout: float) -> OwnJob:
        """Call a function for adapters before any further request, and return its answer. It may take `timeout` seconds."""
        job = OwnJob(invoke)
        self._asking += 1
        try:
            while len(self._calls) >= self._max_calls:
                await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            if self._is_leaving:
                job.fail(RequestFailed(f"{self._name} has ended"))
                return job
            call = self.call([job], timeout, dynamic=False, adapter_function=adapter_function)
        finally:
            self._asking -= 1
        await asyncio.wait({call})
        return job

    def call(
        self, jobs: Sequence[PoolJob], timeout: float, *, dynamic: bool, adapter_function: str = ""
    ) -> asyncio.Task[None]:
        """Answer the jobs with one call. They have ended when the task has.

        A call that takes longer than `timeout` seconds is told to end. If it does not, the process is ended.
        """
        number = self._number
        try:
            message = frame(Batch(number, [job.invoke for job in jobs], dynamic, adapter_function))
        except MessageTooLong as error:  # a single job: batches are limited
            for job in jobs:
                job.fail(InvalidRequest(f"the request is too long: {error}"))
            return asyncio.ensure_future(asyncio.sleep(0))
        self._number += len(jobs)
        self.was_used = True
        answers = [_Answer(job) for job in jobs]
        self._answers.update(enumerate(answers, number))
        self._writer.write(message)
        for job in jobs:
            job.on_leave = lambda: self._abort_unwanted(number, jobs)
        call = asyncio.ensure_future(self._finish(number, answers, timeout))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def retire(self) -> None:
        """Make no further calls, and end the process after those that are being made."""
        self._is_leaving = True
        if self._calls:
            await asyncio.wait(self._calls)
        await self.end()

    async def end(self) -> None:
        """Kill the process and all that it has started, and wait until it is gone, or given up."""
        self._kill()
        await self.ended

    def close(self) -> None:
        """Close the connection to a process that has ended, whatever may still arrive."""
        self._writer.close()

    async def _load(self) -> None:
        code = self._code
        try:
            message = await receive(self._reader, _decoder)
        except (EOFError, OSError) as error:
            raise CodeError(ConfigError(f"{code.path}: its process {await self._how()} while it was loaded")) from error
        except ProtocolError as error:
            raise CodeError(
                ConfigError(f"{code.path}: it wrote to the server's connection while it was loaded")
            ) from error
        if isinstance(message, LoadError):
            kind = LoadFailed if message.temporary else ConfigError
            raise CodeError(kind(message.message), message.traceback)
        assert isinstance(message, Loaded)  # noqa: S101  the protocol
        self._max_calls = message.max_calls

    async def _finish(self, number: int, answers: list[_Answer], timeout: float) -> None:
        _, late = await asyncio.wait([answer.ended for answer in answers], timeout=timeout)
        if late:
            cause = f"did not return within option.predict_timeout ({timeout:g} s)"
            for answer in answers:
                answer.job.fail(DeadlineExceeded(f"{self._code.function} {cause}"))
            self._writer.write(frame(AbortBatch(number)))
            _, stuck = await asyncio.wait(late, timeout=_GRACE)
            if stuck:
                self._is_leaving = True
                self._cause = f"{self._name} was replaced, because another call {cause}"
                self._kill()
                await asyncio.wait(stuck)
        self.idle_since = asyncio.get_running_loop().time()

    async def _read(self) -> None:
        """Pass on what the process sends until it has ended. Then the requests that it worked on fail."""
        try:
            while True:
                self._take(await receive(self._reader, _decoder))
        except (EOFError, OSError):
            self._is_leaving = True
            cause = f"{self._name} {await self._how()} while it worked on this request"
        except ProtocolError as error:
            self._is_leaving = True
            cause = f"{self._name} was replaced, because it wrote to the server's connection: {error}"
        await self.end()
        for answer in self._answers.values():
            answer.fail(self._cause or cause)

    def _take(self, message: FromCode) -> None:
        if isinstance(message, Loaded | LoadError) or (answer := self._answers.get(message.index)) is None:
            raise ProtocolError("it has answered a request that it was not sent")
        answer.add(message)
        if isinstance(message, End):
            del self._answers[message.index]
        elif answer.streams and answer.pause is None and answer.job.is_behind:
            answer.pause = asyncio.ensure_future(self._pause(message.index, answer))

    async def _pause(self, number: int, answer: _Answer) -> None:
        """Let a stream wait for its client, and nothing else."""
        self._writer.write(frame(Pause(number)))
        await answer.job.caught_up()
        self._writer.write(frame(Resume(number)))
        answer.pause = None

    def _abort_unwanted(self, number: int, jobs: Sequence[PoolJob]) -> None:
        """Tell the process once nobody waits for any of the answers."""
        if all(job.left for job in jobs):
            self._writer.write(frame(AbortBatch(number)))

    async def _how(self) -> str:
        """Return how the process has ended, or why it will."""
        await asyncio.wait({self.ended}, timeout=_LINGER)
        if not self.ended.done():
            return "closed the server's connection, and was replaced,"
        return f"ended with {describe(self.ended.result())}"

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the process's end, in a thread."""
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop has ended before a process that was given up
            loop.call_soon_threadsafe(self._end_rest, status)

    def _end_rest(self, status: int) -> None:
        """End what the process has left behind, and close the connection."""
        if not self.ended.done():
            self.ended.set_result(status)
        self._process.kill()
        self._process.close()
        asyncio.get_running_loop().call_later(_LINGER, self._writer.close)  # a daemon may hold the other end open

    def _kill(self) -> None:
        if not self.ended.done():
            asyncio.get_running_loop().call_later(KILL_TIMEOUT, self._give_up)
        self._process.kill()

    def _give_up(self) -> None:
        """Go on without the process if it has not ended."""
        if not self.ended.done():
            logger.error("a process that runs the model's code cannot be killed", extra={"pid": self._process.pid})
            self._is_leaving = True
            self._writer.transport.abort()
            self.ended.set_result(-signal.SIGKILL)
