"""The thread that talks to the engine. The engine's own objects never leave it."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi import RequestOutput

from backends.tensorrt_llm.delta_reader import DeltaReader
from lmi_handlers.core.errors import EngineDead, RequestFailed
from lmi_handlers.core.outputs import TokenOutput

_JOIN_SECONDS = 5.0


class LLMActor:
    """Submits requests to an `LLM` and reads the results, on its own asyncio loop.

    A result belongs to the loop that creates it, and it changes whenever it is read. So results are created, read and
    dropped in this thread, and only `TokenOutput`s leave it.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._results: dict[DeltaReader, tuple[RequestOutput, asyncio.Task[None]]] = {}
        self._outputs: queue.SimpleQueue[tuple[DeltaReader, TokenOutput] | Exception] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tensorrt_llm", daemon=True)
        self._thread.start()

    def submit(
        self, sequence: DeltaReader, prompt_token_ids: list[int], sampling_params: SamplingParams, **options: Any
    ) -> None:
        """Start a sequence. `options` are passed to `generate_async`. Raises its immediate errors."""
        asyncio.run_coroutine_threadsafe(
            self._start(sequence, prompt_token_ids, sampling_params, options), self._loop
        ).result()

    def abort(self, sequence: DeltaReader) -> None:
        """Stop a sequence. Earlier outputs may still be received."""
        self._loop.call_soon_threadsafe(self._abort, sequence)

    def receive(self, timeout: float) -> list[tuple[DeltaReader, TokenOutput]]:
        """Return all new outputs. Waits at most `timeout` seconds for the first. Raises `EngineDead`."""
        received: list[tuple[DeltaReader, TokenOutput]] = []
        try:
            item = self._outputs.get(timeout=timeout)
            while True:
                if isinstance(item, Exception):
                    raise EngineDead(f"TensorRT-LLM died: {type(item).__name__}: {item}") from item
                received.append(item)
                item = self._outputs.get_nowait()
        except queue.Empty:
            return received

    def close(self) -> None:
        """Stop every sequence and the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_JOIN_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)
        self._loop.close()

    # Called in the thread

    async def _start(
        self,
        sequence: DeltaReader,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        options: dict[str, Any],
    ) -> None:
        result = self._llm.generate_async(prompt_token_ids, sampling_params, streaming=True, **options)
        self._results[sequence] = result, asyncio.create_task(self._read(sequence, result))

    async def _read(self, sequence: DeltaReader, result: RequestOutput) -> None:
        try:
            async for _ in result:
                output = sequence.take(result)
                if output is not None:
                    self._outputs.put((sequence, output))
                if sequence.finished:
                    break
            else:
                self._outputs.put((sequence, sequence.fail("TensorRT-LLM ended the request without a reason")))
        except RequestError as error:
            self._outputs.put((sequence, sequence.fail(str(error))))
        except RequestFailed as error:
            result.abort()
            self._outputs.put((sequence, sequence.fail(str(error))))
        except Exception as error:  # noqa: BLE001 (the engine is dead; `receive` raises the error)
            self._outputs.put(error)
        finally:
            del self._results[sequence]

    def _abort(self, sequence: DeltaReader) -> None:
        if sequence in self._results:
            result, task = self._results[sequence]
            result.abort()
            task.cancel()

    async def _stop(self) -> None:
        tasks = [task for _, task in self._results.values()]
        for sequence in list(self._results):
            self._abort(sequence)
        await asyncio.gather(*tasks, return_exceptions=True)
