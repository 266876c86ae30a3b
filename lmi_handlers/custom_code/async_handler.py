"""Calls an asynchronous function: for several batches at a time, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.custom_code.adapter_functions import adapter_function
from lmi_handlers.custom_code.call import Call
from lmi_handlers.custom_code.connection import Connection
from lmi_handlers.custom_code.failures import author_traceback
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.messages import AbortBatch, Batch, FromPool, Loaded, Pause, Resume

_LAST = object()

logger = logging.getLogger(__name__)


class AsyncHandler:
    """Calls the function, which is `async def`. `AbortBatch` cancels a call.

    What it leaves running in the event loop goes on between the calls.
    """

    def __init__(self, function: Callable[[Input], Any], code: CustomCode) -> None:
        self._function = function
        self._code = code
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(code.max_calls))  # one per stream that is not asynchronous
        asyncio.set_event_loop(self._loop)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._flows: dict[int, asyncio.Event] = {}
        self._aborted: set[int] = set()

    def call(self, inputs: Input) -> Any:
        """Return what the function returns. Raises whatever it raises."""
        return self._loop.run_until_complete(self._result(inputs))

    def exhaust(self, stream: Any) -> None:
        """Run a stream to its end."""

        async def run() -> None:
            async for _ in _items(stream):
                pass

        self._loop.run_until_complete(run())

    def serve(self, connection: Connection) -> None:
        """Say that the code is loaded, and answer what the pool asks, for ever."""
        connection.listen(lambda message: self._loop.call_soon_threadsafe(self._take, message, connection))
        connection.send(Loaded(self._code.max_calls))
        while not self._loop.is_closed():
            self._run()

    def _run(self) -> None:
        """Run the event loop until the code stops it, on purpose or by what asyncio passes on, such as `SystemExit`."""
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001  whoever awaits the task gets it, too
            logger.error("a task of the model's code failed", extra={"exception": author_traceback(error)})
        else:
            logger.warning("the model's code has stopped the event loop, which goes on")

    def _take(self, message: FromPool, connection: Connection) -> None:
        match message:
            case Batch(number):
                self._flows[number] = asyncio.Event()
                self._flows[number].set()
                self._calls[number] = self._loop.create_task(self._answer(message, connection))
                self._calls[number].add_done_callback(lambda task: self._forget(message, task, connection))
            case AbortBatch(number) if number in self._calls:
                self._aborted.add(number)
                self._calls[number].cancel()
            case Pause(number) if number in self._flows:
                self._flows[number].clear()
            case Resume(number) if number in self._flows:
                self._flows[number].set()

    def _forget(self, batch: Batch, task: asyncio.Task[None], connection: Connection) -> None:
        del self._calls[batch.number], self._flows[batch.number]
        self._aborted.discard(batch.number)
        if task.cancelled():  # before its first step; a call that has begun sends this itself
            connection.send(*Call(batch, self._code.function).cancelled())

    async def _result(self, inputs: Input, function: Callable[[Input], Any] | None = None) -> Any:
        os.chdir(self._code.directory)  # an earlier call may have changed it
        result = (function or self._function)(inputs)
        return await result if hasattr(result, "__await__") else result

    async def _answer(self, batch: Batch, connection: Connection) -> None:
        """Send the messages that answer a batch, whatever the code raises: the other calls must not notice."""
        call = Call(batch, self._code.function)
        try:
            call.accept(await self._result(call.input, adapter_function(batch, self._code)))
            if call.stream is None:
                connection.send(*call.whole())
            else:
                async with contextlib.aclosing(_items(call.stream)) as items:
                    async for item in items:
                        connection.send(*call.item(item))
                        await asyncio.sleep(0)  # a generator that never waits would keep all others waiting
                        await self._flows[batch.number].wait()
                connection.send(*call.end())
        except BaseException as error:  # noqa: BLE001  see above
            is_cancelled = isinstance(error, asyncio.CancelledError) and batch.number in self._aborted
            connection.send(*(call.cancelled() if is_cancelled else call.failed(error)))
        call.finalize()


async def _items(stream: Any) -> AsyncGenerator[Any]:
    """Yield the items of any iterable. One that is not asynchronous may block, so it runs in a thread.

    Nothing interrupts that. A call has not ended before its thread: threads that hang would leave none for others.
    """
    if hasattr(stream, "__aiter__"):
        iterator = aiter(stream)
        try:
            async for item in iterator:
                yield item
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()
        return
    iterator = iter(stream)
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, iterator, _LAST))
            if (item := await asyncio.shield(step)) is _LAST:
                break
            yield item
    finally:
        while step is not None and not step.done():
            with contextlib.suppress(asyncio.CancelledError):  # once more, because the time is over
                await asyncio.wait({step})
        if hasattr(iterator, "close"):
            iterator.close()
