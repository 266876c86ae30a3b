"""The pool process: takes the web workers' requests, and hands them to the processes that run a model's own code.

It runs in place of an engine and never imports the code. A process that hangs or dies is replaced, and only the
requests that it worked on fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed, QueueFull, RefusedByCode
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.custom_code.adapters import CodeAdapters
from lmi_handlers.custom_code.job import PoolJob
from lmi_handlers.custom_code.messages import (
    BodyChunk,
    ChangeAdapter,
    End,
    FromWorker,
    Head,
    Invoke,
    Serving,
    Watch,
    failed,
)
from lmi_handlers.custom_code.prepare import prepared
from lmi_handlers.custom_code.processes import CodeProcesses, log_error
from lmi_handlers.custom_code.runner import CodeError
from lmi_handlers.custom_code.sources import PROPERTIES, Sources
from lmi_handlers.custom_code.streams import receive
from lmi_handlers.engine.heartbeat import PULSE_INTERVAL, Heartbeat
from lmi_handlers.engine.load_report import LoadReport
from lmi_handlers.engine.messages import Loading
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.engine.supervised import run_supervised
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.workers.channel import ProtocolError, frame

_LOAD_INTERVAL = 0.1
_RELOAD_INTERVAL = 0.5
_BACKLOG = 4096
_FLUSH = 0.2

logger = logging.getLogger("lmi_handlers.custom_code.pool")  # __name__ is "__main__" here

_decoder = msgspec.msgpack.Decoder(FromWorker)


class Pool:
    """Serves the web workers. Everything runs in one event loop."""

    def __init__(self, settings: EngineSettings, code: CustomCode) -> None:
        default = {"sessions_path": str(settings.socket_path.parent / "sessions")}  # deleted when the server ends
        code = msgspec.structs.replace(code, properties=default | code.properties)
        self._settings = settings
        self._code = code
        adapters = CodeAdapters(code, settings.properties, settings.socket_path.parent)
        self._processes = CodeProcesses(code, settings.properties, self._follow, adapters)
        self._metrics = EngineMetrics(settings.metrics_dir)
        self._heartbeat = Heartbeat.create(settings.heartbeat_path)
        self._state: Loading | Serving = Loading(LoadPhase.STARTING.value, time.monotonic())
        self._watchers: set[asyncio.StreamWriter] = set()
        self._sources = Sources(Path(code.directory)) if settings.reload else None

    async def run(self) -> None:
        """Serve until this process is killed. Raises `CodeError` if the code cannot be used."""
        path = self._settings.socket_path
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path, backlog=_BACKLOG)
        report = LoadReport(self._settings.started, self._announce, self._metrics, self._heartbeat)
        with contextlib.ExitStack() as stack:
            try:
                code = await self._prepared(stack, report)
                report(LoadPhase.MODEL)
                await self._processes.start(code, self._time_to_load())
            except CodeError as error:
                self._announce(Loading(str(error), time.monotonic()))
                await asyncio.sleep(_FLUSH)
                raise
            await self._serve_all(server, report)

    async def _serve_all(self, server: asyncio.Server, report: LoadReport) -> None:
        self._heartbeat.start(patience=1.0)
        seconds = report.finish()
        self._announce(Serving())
        logger.info("model code ready", extra={"path": self._code.path, "seconds": round(seconds, 3)})
        await asyncio.gather(
            server.serve_forever(), self._beat(), self._publish_load(), self._processes.run(), self._reload()
        )

    async def _prepared(self, stack: contextlib.ExitStack, report: LoadReport) -> CustomCode:
        """Return the code with all that it needs, which stays until `stack` ends. Raises `CodeError`."""
        call_here = asyncio.get_running_loop().call_soon_threadsafe

        def report_here(phase: str) -> None:
            call_here(report, phase)

        def progress_here(done: int, total: int) -> None:
            call_here(report.download, done, total)

        needs = prepared(self._code, self._settings.properties, report_here, progress_here)
        try:
            return await asyncio.to_thread(stack.enter_context, needs)
        except (ConfigError, LoadFailed) as error:
            raise CodeError(error) from error

    def _time_to_load(self) -> float:
        """Return the seconds that are left for loading. As for the supervisor, they begin after a download."""
        began = max(self._settings.started, self._heartbeat.last_arrival)
        return began + self._settings.properties.model_loading_timeout - time.monotonic()

    async def _reload(self) -> None:
        """Replace the processes whenever the code has changed, if that is wanted."""
        while self._sources is not None:
            await asyncio.sleep(_RELOAD_INTERVAL)
            changed = await asyncio.to_thread(self._sources.changed)
            if PROPERTIES in changed:
                changed.remove(PROPERTIES)
                logger.warning("serving.properties has changed: restart the server, which reads it only at its start")
            if changed:
                logger.info("the model's code has changed and is loaded again", extra={"files": changed})
                self._processes.reload()

    def _follow(self, cause: str | None) -> None:
        """Without any process, new requests are rejected."""
        if cause is not None:
            self._announce(Loading(cause, time.monotonic()))
        elif not isinstance(self._state, Serving):
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
            match message:
                case Watch():
                    await self._inform(reader, writer)
                case ChangeAdapter():
                    await self._change_adapter(message, writer)
                case Invoke():
                    await self._answer(message, reader, writer)
        except (EOFError, OSError, asyncio.CancelledError):
            pass  # the web worker has closed it, or this process ends
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

    async def _change_adapter(self, message: ChangeAdapter, writer: asyncio.StreamWriter) -> None:
        """Make a change, even if the web worker does not wait for its end."""
        try:
            await self._processes.change_adapter(message)
            answer: list[Head | BodyChunk | End] = [Head(0, 200, {}, streams=False), End(0)]
        except RefusedByCode as error:
            answer = [Head(0, error.status, {}, streams=False), BodyChunk(0, str(error).encode()), End(0)]
        except LMIError as error:
            answer = [failed(0, error)]
        except OSError as error:  # the disk is full
            answer = [End(0, f"the adapter cannot be registered: {error}")]
        writer.write(b"".join(map(frame, answer)))

    async def _answer(self, invoke: Invoke, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Queue a request, and return once it is answered or the web worker has closed the connection."""
        job = PoolJob(invoke, writer)
        try:
            self._processes.submit(job)
        except QueueFull as error:
            job.fail(error)
            return
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((left, job.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not job.ended.done():
                job.leave()
                self._processes.waiting.discard(job)

    async def _beat(self) -> None:
        """Show other processes that the event loop runs."""
        while True:
            self._heartbeat.beat()
            self._heartbeat.rest()
            await asyncio.sleep(PULSE_INTERVAL)

    async def _publish_load(self) -> None:
        while True:
            processes = self._processes
            self._metrics.set_load(running=processes.running, waiting=len(processes.waiting), kv_cache_usage=0.0)
            await asyncio.sleep(_LOAD_INTERVAL)


def serve(settings: EngineSettings) -> None:
    """Serve until this process is killed. Raises `ConfigError` or `LoadFailed` if the code cannot be used."""
    if settings.reload:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # which is stale after two changes within a second
    try:
        asyncio.run(_serve(settings))
    except CodeError as error:
        log_error(error)
        raise error.error from error


async def _serve(settings: EngineSettings) -> None:
    assert settings.custom_code is not None  # noqa: S101  otherwise there is an engine
    await Pool(settings, settings.custom_code).run()


if __name__ == "__main__":
    run_supervised(serve)
