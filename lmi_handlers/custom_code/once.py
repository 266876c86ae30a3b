"""Loads a model's own code, with its adapters, and calls it without a server, in a process like those of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.terminal import show_error
from lmi_handlers.custom_code.adapters import CodeAdapters
from lmi_handlers.custom_code.job import PoolJob
from lmi_handlers.custom_code.messages import BodyChunk, End, Head, Invoke, ToWorker
from lmi_handlers.custom_code.prepare import prepared
from lmi_handlers.custom_code.runner import CodeError, CodeRunner
from lmi_handlers.custom_code.streams import receive

_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def load_once(code: CustomCode, properties: ServingProperties) -> None:
    """Import the code and make the first call. Raises `CodeError`."""

    async def load() -> None:
        async with _started(code, properties):
            pass

    asyncio.run(load())


def call_once(
    code: CustomCode, properties: ServingProperties, invoke: Invoke, deliver: Callable[[Head | BodyChunk | End], object]
) -> None:
    """Answer one request: `deliver` gets its answer in parts. Raises `CodeError` if the code cannot be loaded."""

    async def call() -> None:
        async with _started(code, properties) as runner:
            ours, its = socket.socketpair()
            reader, our_writer = await asyncio.open_unix_connection(sock=ours)
            _, writer = await asyncio.open_unix_connection(sock=its)
            runner.call([PoolJob(invoke, writer)], properties.predict_timeout, dynamic=properties.batch_size > 1)
            message: ToWorker | None = None
            while not isinstance(message, End):
                message = await receive(reader, _decoder)
                assert isinstance(message, Head | BodyChunk | End)  # noqa: S101  what a `PoolJob` sends
                deliver(message)
            our_writer.close()
            writer.close()

    asyncio.run(call())


@contextlib.asynccontextmanager
async def _started(code: CustomCode, properties: ServingProperties) -> AsyncIterator[CodeRunner]:
    with contextlib.ExitStack() as stack:
        try:
            code = stack.enter_context(prepared(code, properties, _tell, lambda *_: None))
        except (ConfigError, LoadFailed) as error:
            raise CodeError(error) from error
        runner = await CodeRunner.start(code, 0, properties.model_loading_timeout)
        try:
            with tempfile.TemporaryDirectory() as directory:
                await CodeAdapters(code, properties, Path(directory)).begin(code, [runner])
            yield runner
        finally:
            await runner.end()
            runner.close()


def _tell(phase: str) -> None:
    """Say what takes long: a download, or an installation."""
    show_error(f"{phase} ..")
