"""The pool process: takes the web workers' requests, and hands them to the processes that run a model's own code.

It runs in place of an engine and never imports the code. A process that hangs or dies is replaced, and only the request
that it worked on fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import LoadFailed, QueueFull
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.custom_code.job import Job, WaitingJobs
from lmi_handlers.custom_code.messages import FromWorker, Invoke, Serving, Watch
from lmi_handlers.custom_code.runner import CodeError, Runner
from lmi_handlers.custom_code.streams import frame, receive
from lmi_handlers.engine.admission import DynamicBatch
from lmi_handlers.engine.channel import ProtocolError
from lmi_handlers.engine.heartbeat import PULSE_INTERVAL, Heartbeat
from lmi_handlers.engine.load_report import LoadReport
from lmi_handlers.engine.messages import Loading
from lmi_handlers.engine.parent import end_with_parent
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings, read_line
from lmi_handlers.log import configure_logging, tell
from lmi_handlers.metrics.engine import EngineMetrics

_FIRST_BACK_OFF = 0.5
_LONGEST_BACK_OFF = 30.0
_LOAD_INTERVAL = 0.1
_BACKLOG = 4096
_FLUSH = 0.2

logger = logging.getLogger("lmi_handlers.custom_code.pool")  # __name__ is "__main__" here

_decoder = msgspec.msgpack.Decoder(FromWorker)


class Pool:
    """The requests of all web workers, and the processes that answer them. Everything runs in one event loop."""

    def __init__(self, settings: EngineSettings, code: CustomCode) -> None:
        properties = settings.properties
        self._settings = settings
        self._code = code
        self._properties = properties
        self._dynamic = properties.batch_size > 1
        self._waiting = WaitingJobs(
            properties.job_queue_size, DynamicBatch(properties.batch_size, properties.max_batch_delay / 1000)
        )
        self._metrics = EngineMetrics(settings.metrics_dir)
        self._heartbeat = Heartbeat.create(settings.heartbeat_path)
        self._state: Loading | Serving = Loading(LoadPhase.STARTING.value, time.monotonic())
        self._watchers: set[asyncio.StreamWriter] = set()
        self._running = 0
        self._lost: set[int] = set()

    async def run(self) -> None:
        """Serve until this process is killed. Raises `CodeError` if the code cannot be used."""
        path = self._settings.socket_path
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path, backlog=_BACKLOG)
        report = LoadReport(self._settings.started, self._announce, self._metrics, self._heartbeat)
        report(LoadPhase.MODEL)
        try:
            runners = await self._start_all()
        except CodeError as error:
            self._announce(Loading(str(error), time.monotonic()))
            await asyncio.sleep(_FLUSH)
            raise
        self._heartbeat.start(patience=1.0)
        seconds = report.finish()
        self._announce(Serving())
        logger.info("model code ready", extra={"path": self._code.path, "seconds": round(seconds, 3)})
        places = (self._keep(place, runner) for place, runner in enumerate(runners))
        await asyncio.gather(server.serve_forever(), self._beat(), self._publish_load(), *places)

    async def _start_all(self) -> list[Runner]:
        """Start the first processes, together. Raises the `CodeError` of any of them."""
        return list(await asyncio.gather(*(self._start(place) for place in range(self._code.processes))))

    async def _start(self, place: int) -> Runner:
        return await Runner.start(self._code, place, self._properties.model_loading_timeout)

    async def _keep(self, place: int, runner: Runner) -> None:
        """Let a process answer requests, and replace it whenever it ends: with back-off unless a request has ended it."""
        failures = 0
        while True:
            failures = 0 if await self._use(runner) else failures + 1
            logger.error("a process that runs the model's code has ended", extra={"restart_in": _back_off(failures)})
            cause = f"{self._code.path}: its process has ended before any request"
            while True:
                if failures:
                    self._lose(place, cause)
                    await asyncio.sleep(_back_off(failures))
                try:
                    runner = await self._start(place)
                    break
                except CodeError as error:
                    failures, cause = failures + 1, str(error)
                    _log_error(error)
            self._regain(place)

    async def _use(self, runner: Runner) -> bool:
        """Hand requests to a process until it has ended. Tells whether there were any."""
        used = False
        while True:
            take = asyncio.ensure_future(self._waiting.take())
            await asyncio.wait({take, runner.ended}, return_when=asyncio.FIRST_COMPLETED)
            if runner.ended.done():
                await self._give_back(take)
                return used
            used, jobs = True, take.result()
            self._running += len(jobs)
            try:
                if not await runner.call(jobs, self._properties.predict_timeout, dynamic=self._dynamic):
                    return used
            finally:
                self._running -= len(jobs)

    async def _give_back(self, take: asyncio.Task[list[Job]]) -> None:
        take.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._waiting.put_back(await take)

    def _lose(self, place: int, cause: str) -> None:
        """Note that a place has no process for a while. Without any process, new requests are rejected."""
        self._lost.add(place)
        if len(self._lost) == self._code.processes:
            self._announce(Loading(cause, time.monotonic()))

    def _regain(self, place: int) -> None:
        self._lost.discard(place)
        if not isinstance(self._state, Serving):
            self._announce(Serving())

    def _announce(self, state: Loading | Serving) -> None:
        """Tell all web workers, including those that connect later."""
        self._state = state
        for writer in self._watchers:
            writer.write(frame(state))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of a web worker."""
        try:
            message = await receive(reader, _decoder)
            if isinstance(message, Watch):
                await self._inform(reader, writer)
            else:
                await self._answer(message, reader, writer)
        except (EOFError, OSError):
            pass  # the web worker has closed it
        except ProtocolError:
            logger.exception("a web worker sent an invalid message; disconnecting it")
        finally:
            writer.close()

    async def _inform(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(self._state))
        self._watchers.add(writer)
        try:
            await reader.read()
        finally:
            self._watchers.discard(writer)

    async def _answer(self, invoke: Invoke, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Queue a request, and return once it is answered or the web worker has closed the connection."""
        job = Job(invoke, writer)
        try:
            await self._waiting.add(job)
        except QueueFull as error:
            await job.fail(error)
            return
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((left, job.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not job.ended.done():
                job.left.set()
                self._waiting.discard(job)

    async def _beat(self) -> None:
        """Show other processes that the event loop runs."""
        while True:
            self._heartbeat.beat()
            self._heartbeat.rest()
            await asyncio.sleep(PULSE_INTERVAL)

    async def _publish_load(self) -> None:
        while True:
            self._metrics.set_load(running=self._running, waiting=len(self._waiting), kv_cache_usage=0.0)
            await asyncio.sleep(_LOAD_INTERVAL)


def _back_off(failures: int) -> float:
    """Return the seconds until the next start after so many failures in a row."""
    return float(min(_FIRST_BACK_OFF * 2 ** (failures - 1), _LONGEST_BACK_OFF)) if failures else 0.0


def _log_error(error: CodeError) -> None:
    logger.error("the model's code cannot be loaded", extra={"cause": str(error), "exception": error.traceback or None})


def main() -> int:
    """Entry point of `python -m lmi_handlers.custom_code.pool`. Reads its settings on standard input."""
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in an engine process
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    assert settings.custom_code is not None  # noqa: S101  otherwise there is an engine
    end_with_parent()
    try:
        asyncio.run(Pool(settings, settings.custom_code).run())
    except CodeError as error:
        _log_error(error)
        tell("error", str(error))
        return EXIT_LOAD_FAILED if isinstance(error.error, LoadFailed) else EXIT_CONFIG
    except Exception:
        logger.exception("the pool died")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
