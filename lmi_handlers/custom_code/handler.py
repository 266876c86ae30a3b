"""Calls a function that is not asynchronous: one batch at a time, on the main thread."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.custom_code.adapter_functions import adapter_function
from lmi_handlers.custom_code.call import Call
from lmi_handlers.custom_code.connection import Connection
from lmi_handlers.custom_code.failures import MustBeReplaced
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.messages import Batch, Loaded

_LAST = object()


class Handler:
    """Calls the function. It may return an awaitable or an asynchronous generator, which run in an event loop of ours."""

    def __init__(self, function: Callable[[Input], Any], code: CustomCode) -> None:
        self._function = function
        self._code = code
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def call(self, inputs: Input, function: Callable[[Input], Any] | None = None) -> Any:
        """Return what the function returns, by default the one that answers requests. Raises whatever it raises."""
        os.chdir(self._code.directory)  # an earlier call may have changed it
        result = (function or self._function)(inputs)
        return self._loop.run_until_complete(_awaited(result)) if inspect.isawaitable(result) else result

    def exhaust(self, stream: Any) -> None:
        """Run a stream to its end."""
        for _ in self._items(stream):
            pass

    def serve(self, connection: Connection) -> None:
        """Say that the code is loaded, and answer what the pool asks, for ever."""
        connection.send(Loaded(max_calls=1))
        while True:
            self._answer(connection.receive(), connection)

    def _answer(self, batch: Batch, connection: Connection) -> None:
        """Send the messages that answer a batch. Of all that the code may raise, only `MustBeReplaced` ends the process."""
        call = Call(batch, self._code.function)
        try:
            inputs = call.input
            inputs.is_aborted = partial(connection.is_aborted, batch.number)
            call.accept(self.call(inputs, adapter_function(batch, self._code)))
            if call.stream is None:
                connection.send(*call.whole())
            else:
                self._stream(call, batch.number, connection)
        except MustBeReplaced:
            raise
        except BaseException as error:  # noqa: BLE001  the requests fail, whatever the code has raised
            connection.send(*call.failed(error))
        call.finalize()

    def _stream(self, call: Call, number: int, connection: Connection) -> None:
        """Send the items as the client reads them. The stream ends early once the request was aborted."""
        items = self._items(call.stream)
        try:
            for item in items:
                connection.send(*call.item(item))
                connection.wait_until_read(number)
                if connection.is_aborted(number):
                    break
        finally:
            items.close()
        connection.send(*call.end())

    def _items(self, stream: Any) -> Generator[Any]:
        """Yield the items of any iterable, or of an asynchronous one."""
        if hasattr(stream, "__aiter__"):
            stream = self._synchronous(aiter(stream))
        iterator = iter(stream)
        try:
            yield from iterator
        finally:
            if hasattr(iterator, "close"):
                iterator.close()

    def _synchronous(self, stream: Any) -> Generator[Any]:
        run = self._loop.run_until_complete
        try:
            while (item := run(anext(stream, _LAST))) is not _LAST:
                yield item
        finally:
            if hasattr(stream, "aclose"):
                run(stream.aclose())


async def _awaited(result: Any) -> Any:
    return await result
