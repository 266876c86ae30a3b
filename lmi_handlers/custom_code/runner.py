"""The pool's side of one process that runs the code: starts it, calls it, and ends it with all that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

import lmi_handlers
from lmi_handlers.config.custom_code import FUNCTION, CustomCode
from lmi_handlers.core.errors import ConfigError, LoadFailed, RequestFailed
from lmi_handlers.custom_code.job import Job
from lmi_handlers.custom_code.messages import Abort, Batch, End, FromCode, Head, Load, Loaded, LoadError
from lmi_handlers.custom_code.streams import frame, receive
from lmi_handlers.engine.channel import ProtocolError

_LINGER = 0.5
"""Seconds after a process's end in which what it has sent may still arrive."""

_decoder = msgspec.msgpack.Decoder(FromCode)


class CodeError(Exception):
    """The code cannot be used. `error` says why, `traceback` has the author's frames."""

    def __init__(self, error: ConfigError | LoadFailed, traceback: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.traceback = traceback


class Runner:
    """A process that has loaded the code. `ended` is done once it has ended, for whatever reason."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self.ended = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls, code: CustomCode, place: int, timeout: float) -> Runner:
        """Start a process and load the code, which may take `timeout` seconds. Raises `CodeError`."""
        ours, its = socket.socketpair()
        with its:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lmi_handlers.custom_code.child", str(its.fileno())),
                stdin=asyncio.subprocess.PIPE,  # it ends when this closes
                pass_fds=(its.fileno(),),
                start_new_session=True,
                cwd=Path(lmi_handlers.__file__).parents[1],  # python -m puts it first on sys.path
            )
        runner = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            await asyncio.wait_for(runner._load(code, place), timeout)
        except asyncio.TimeoutError:
            await runner.end()
            raise CodeError(
                ConfigError(f"{code.path} did not load within model_loading_timeout ({timeout:g} s)")
            ) from None
        except BaseException:
            await runner.end()
            raise
        return runner

    async def call(self, jobs: list[Job], timeout: float, *, dynamic: bool) -> bool:
        """Answer the jobs with one call. Returns False if the process must be replaced: it has hung, or has died."""
        batch = Batch(next(self._numbers), [job.invoke for job in jobs], dynamic)
        pending = dict(enumerate(jobs))
        begun: set[int] = set()
        watch = asyncio.ensure_future(self._abort_unwanted(jobs, batch.number))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            self._writer.write(frame(batch))
            while pending:
                message = await asyncio.wait_for(receive(self._reader, _decoder), deadline - loop.time())
                if isinstance(message, Loaded | LoadError) or message.index not in pending:
                    raise ProtocolError("it has answered a request that it was not sent")
                if isinstance(message, Head) is (message.index in begun) and not isinstance(message, End):
                    raise ProtocolError("an answer must have one head, before its content")
                begun.add(message.index)
                await pending[message.index].send(message)
                if isinstance(message, End):
                    del pending[message.index]
        except asyncio.TimeoutError:
            cause = f"{FUNCTION} did not return within option.predict_timeout ({timeout:g} s); its process was replaced"
        except (EOFError, OSError):
            cause = f"the process that runs {FUNCTION} ended with {await self._how()} while it worked on this request"
        except ProtocolError as error:
            cause = (
                f"the process that runs {FUNCTION} was replaced, because it wrote to the server's connection: {error}"
            )
        else:
            return True
        finally:
            watch.cancel()
        await self.end()
        for job in pending.values():
            await job.fail(RequestFailed(cause))
        return False

    async def end(self) -> None:
        """Kill the process and all that it has started, and wait until it is gone."""
        self._kill()
        await self.ended

    async def _load(self, code: CustomCode, place: int) -> None:
        device = str(place % code.gpus) if code.gpus else "-1"
        self._writer.write(frame(Load(code, {**code.properties, "device_id": device})))
        try:
            message = await receive(self._reader, _decoder)
        except (EOFError, OSError) as error:
            how = await self._how()
            raise CodeError(ConfigError(f"{code.path}: its process ended with {how} while it was loaded")) from error
        except ProtocolError as error:
            raise CodeError(
                ConfigError(f"{code.path}: it wrote to the server's connection while it was loaded")
            ) from error
        if isinstance(message, LoadError):
            kind = LoadFailed if message.temporary else ConfigError
            raise CodeError(kind(message.message), message.traceback)

    async def _abort_unwanted(self, jobs: list[Job], number: int) -> None:
        """Tell the process once nobody waits for any of the answers."""
        await asyncio.gather(*(job.left.wait() for job in jobs))
        self._writer.write(frame(Abort(number)))

    async def _how(self) -> str:
        self._kill()
        status = await self.ended
        return f"status {status}" if status >= 0 else signal.Signals(-status).name

    async def _wait(self) -> int:
        """Wait for the process's end, end what it has left behind, and close the connection. Returns its status."""
        status = await self._process.wait()
        self._kill()
        asyncio.get_running_loop().call_later(_LINGER, self._writer.close)  # a daemon may hold the other end open
        return status

    def _kill(self) -> None:
        with contextlib.suppress(
            ProcessLookupError, PermissionError
        ):  # macOS raises the latter if only zombies are left
            os.killpg(self._process.pid, signal.SIGKILL)
