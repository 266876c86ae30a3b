"""Results: one object per request, which is updated when it is read."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from tensorrt_llm.contract import CONTRACT, Misuse, dataclass_of
from tensorrt_llm.executor.utils import RequestError, running_loop

if TYPE_CHECKING:
    from tensorrt_llm.executor.worker import Worker


@dataclasses.dataclass(slots=True)
class Logprob:
    """The logprob of a token at a position. The most likely token has `rank` 1."""

    logprob: float
    rank: int | None = None


@dataclasses.dataclass
class Response:
    """The new tokens of a request in one step of the worker."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] | None = None
    context_logits: torch.Tensor | None = None
    finish: str | None = None
    stop_word: int | None = None
    cached_tokens: int = 0


def _since(name: str) -> property:
    return property(lambda self: getattr(self, name)[getattr(self, f"_last_{name}_len") :])


CompletionOutput = dataclass_of(
    "CompletionOutput",
    keywords=False,
    counters=("_last_token_ids_len", "_last_logprobs_len"),
    length=property(lambda self: len(self.token_ids)),
    token_ids_diff=_since("token_ids"),
    logprobs_diff=_since("logprobs"),
)


class RequestOutput:
    """The results of a request so far. Each iteration yields this same object, updated."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Any]
    context_logits: torch.Tensor | None
    finished: bool
    cached_tokens: int
    sampling_params: Any

    def __init__(self) -> None:
        raise RuntimeError("RequestOutput is made by the engine only")

    @classmethod
    def _make(cls, request_id: int, prompt: list[int], params: Any, worker: Worker, streaming: bool) -> RequestOutput:
        made = cls.__new__(cls)
        made.request_id = request_id
        made.prompt = None
        made.prompt_token_ids = prompt
        made.outputs = [CompletionOutput(0)]
        made.context_logits = None
        made.finished = False
        made.cached_tokens = 0
        made.sampling_params = params
        made._as_submitted = repr(params)
        made._worker = worker
        made._streaming = streaming
        made._aborted = False
        made._loop = running_loop()
        made.aqueue = None if made._loop is None else asyncio.Queue()
        return made

    _worker: Worker
    _streaming: bool
    _aborted: bool
    _as_submitted: str
    _loop: asyncio.AbstractEventLoop | None
    aqueue: asyncio.Queue[Response | str | Exception] | None

    def abort(self) -> None:
        """Ask the worker to drop the request."""
        self._aborted = True
        self._worker.abort(self.request_id)

    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted

    async def aresult(self) -> RequestOutput:
        """Wait for the end."""
        async for _ in self:
            pass
        return self

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __aiter__(self) -> RequestOutput:
        assert self.aqueue is not None, (
            "The asyncio event loop was not present during initialization, so async operations are not available."
        )
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished or self.aqueue is None:
            raise StopAsyncIteration
        self._handle(await self.aqueue.get())
        return self

    def _put(self, response: Response | str | Exception) -> None:
        """Called by the worker with a response, the text of this request's error, or the error that ended the worker."""
        if self._loop is None or self.aqueue is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self.aqueue.put_nowait, response)

    def _handle(self, response: Response | str | Exception) -> None:
        if isinstance(response, Exception):
            raise response
        if isinstance(response, str):
            raise RequestError(response)
        if repr(self.sampling_params) != self._as_submitted:
            raise Misuse("a SamplingParams was changed after it had been submitted")
        output = self.outputs[0]
        output._last_token_ids_len = len(output.token_ids)
        output._last_logprobs_len = len(output.logprobs)
        self.cached_tokens = response.cached_tokens
        output.token_ids.extend(response.token_ids)
        output.logprobs.extend(response.logprobs)
        if self.sampling_params.logprobs:
            assert len(output.logprobs) == len(output.token_ids)
        if response.prompt_logprobs is not None:
            output.prompt_logprobs = response.prompt_logprobs
        if response.context_logits is not None:
            self.context_logits = response.context_logits
        if response.finish is not None:
            output.finish_reason = CONTRACT["finish_reasons"][response.finish][0]
            output.stop_reason = response.stop_word
            if response.finish == "STOP_WORDS" and not self.sampling_params.include_stop_str_in_output:
                output.token_ids = output.token_ids[:-1]
            self.finished = True
