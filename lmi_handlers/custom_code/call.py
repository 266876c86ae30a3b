"""One call of the function that answers requests: its input, and the messages that what it returns becomes."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lmi_handlers.core.errors import RequestError, told
from lmi_handlers.custom_code.failures import author_traceback, described, named, plain
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.messages import Batch, BodyChunk, End, Head
from lmi_handlers.custom_code.outputs import FAILURE, Output, text_or_line
from lmi_handlers.workers.channel import MAX_MESSAGE_SIZE

Messages = list[Head | BodyChunk | End]

_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_NO_CONTENT = 204
_MAX_CONTENT = MAX_MESSAGE_SIZE - (1 << 16)

logger = logging.getLogger(__name__)


class Call:
    """A batch that begins to be answered, and the answers to its requests, each of which ends with one `End`.

    `accept` takes what the function, called `name`, has returned. If `stream` is None then, `whole` has all messages.
    Otherwise `item` has those of each item of the stream, and `end` the last ones.
    """

    def __init__(self, batch: Batch, name: str) -> None:
        self._batch = batch
        self._name = batch.adapter_function or name
        self._numbers = range(batch.number, batch.number + len(batch.invocations))
        self._outputs: list[Output] = []
        self._errors: dict[int, Exception] = {}
        self._is_shared = False
        self._begun = False
        self._called = time.monotonic()

    @property
    def input(self) -> Input:
        """The arguments of the function."""
        inputs = [Input(item.properties, item.parts, self._name) for item in self._batch.invocations]
        return Input.of_batch(inputs) if self._batch.dynamic else inputs[0]

    @property
    def stream(self) -> Any:
        """The stream that answers the request, or None."""
        return self._outputs[0].stream_content

    def accept(self, result: Any) -> None:
        """Take the result. Raises `ValueError` or `TypeError` if it is nonsense."""
        size, name = len(self._numbers), self._name
        outputs = to_outputs(result)
        self._is_shared = not isinstance(outputs, list)
        if isinstance(outputs, list):
            self._errors = {index: item for index, item in enumerate(outputs) if isinstance(item, Exception)}
            self._outputs = [item if isinstance(item, Output) else Output() for item in outputs]
        else:
            self._outputs = [outputs] * size
        if len(self._outputs) != size:
            raise ValueError(f"{name} returned {len(self._outputs)} outputs for a batch of {size} requests")
        for output in self._outputs:
            self._status(output)
            if output.stream_content is not None and size > 1:
                raise TypeError(
                    f"{name} returned a stream for a batch of {size} requests: a stream answers one, without batch_size"
                )

    def whole(self) -> Messages:
        """Return all answers. Raises `ValueError` if there is none for one of the requests."""
        parts = [self._part(index) if self._is_shared else item.data() for index, item in enumerate(self._outputs)]
        messages: Messages = []
        for index, (output, data) in enumerate(zip(self._outputs, parts, strict=True)):
            error = self._errors.get(index)
            number = self._numbers[index]
            messages += self._answer(number, output, data) if error is None else self._failure(index, error)
        return messages

    def item(self, item: Any) -> Messages:
        """Return what an item of the stream becomes. Before the first, there is the head."""
        messages = self._head(item)
        if data := self._outputs[0].format(item):
            messages.append(self._chunk(self._batch.number, data))
        self._begun = True
        return messages

    def end(self) -> Messages:
        """Return the end of the stream."""
        return [*self._head(None), self._timed(End(self._batch.number))]

    def failed(self, error: BaseException) -> Messages:
        """Return the ends of all requests, because the code has raised an error."""
        return [message for index in range(len(self._numbers)) for message in self._failure(index, error)]

    def cancelled(self) -> Messages:
        """Return the ends of all requests, because the call was cancelled."""
        return [self._timed(End(number, f"{self._name} was cancelled")) for number in self._numbers]

    def finalize(self) -> None:
        """Do what `Output.finalize` asked for, once the answers have been sent."""
        for output in self._outputs[:1] if self._is_shared else self._outputs:
            output.execute_finalize()

    def _head(self, first: object) -> Messages:
        """Return the head of the stream once. A generator of outputs has it in the first of them."""
        if self._begun:
            return []
        output = self._outputs[0]
        if isinstance(first, Output):
            properties = {**output.properties, **first.properties}
            return [Head(self._batch.number, self._status(first), _plain_all(properties), streams=True)]
        return [Head(self._batch.number, self._status(output), _plain_all(output.properties), streams=True)]

    def _status(self, output: Output) -> int:
        """Return the status of an output. Raises `ValueError` if it is nonsense."""
        status = int(output.code)
        if not 200 <= status <= 599:
            raise ValueError(f"{self._name} returned the status {output.code}: it must be from 200 to 599")
        return status

    def _failure(self, index: int, error: BaseException) -> Messages:
        """Return the end of a request that failed. LMI answers 507 if memory ran out."""
        number, cause = self._numbers[index], plain(described(error))
        if isinstance(error, RequestError):  # of ours: it says what is wrong with the request
            kind, message, field, code = told(error)
            return [self._timed(End(number, plain(message), kind, code, field))]
        extra = {"request_id": self._batch.invocations[index].request_id, "exception": author_traceback(error)}
        logger.error("%s failed", self._name, extra=extra)
        if type(error).__name__ in _OUT_OF_MEMORY and not self._begun:
            output = Output().error(cause, code=507, message=FAILURE)
            return self._answer(number, output, output.data())
        reason = cause if isinstance(error, Exception) else f"{self._name} raised {named(error)}"
        return [self._timed(End(number, reason))]

    def _answer(self, number: int, output: Output, data: bytes) -> Messages:
        head = Head(number, int(output.code), _plain_all(output.properties), streams=False)
        return [head, self._chunk(number, data), self._timed(End(number))]

    def _timed(self, end: End) -> End:
        """Add the request's equal share of the time since the call began."""
        return msgspec.structs.replace(end, seconds=(time.monotonic() - self._called) / len(self._numbers))

    def _chunk(self, number: int, data: bytes) -> BodyChunk:
        if len(data) > _MAX_CONTENT:
            raise ValueError(f"{self._name} returned {len(data)} bytes at once: at most {_MAX_CONTENT} are possible")
        return BodyChunk(number, data)

    def _part(self, index: int) -> bytes:
        """Return a request's part of an output for the whole batch. Raises `ValueError` if there is none."""
        output, size = self._outputs[0], len(self._numbers)
        if index in output.batch:
            return output.data(index)
        if output.batch or (size > 1 and output.code < 300 and output.code != _NO_CONTENT):
            raise ValueError(f"{self._name} returned nothing for request {index} of the batch: use batch_index={index}")
        return output.data()  # an error of the whole batch is an error of each of its requests


def _plain_all(properties: Mapping[Any, Any]) -> dict[str, str]:
    return {plain(name): plain(value) for name, value in properties.items()}


def to_outputs(result: Any) -> Output | list[Output | Exception]:
    """Return what a function has returned as an output, or as one per request. Raises `TypeError`.

    Functions of ours may return an error in place of a request's output.
    """
    if result is None:
        return Output(_NO_CONTENT, "No content")
    if isinstance(result, Output):
        return result
    if isinstance(result, list) and result and all(isinstance(item, Output | Exception) for item in result):
        return result
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        return Output().add_stream_content(result, text_or_line)
    raise TypeError(f"Invalid output type: {type(result)}")


def is_asynchronous(function: Callable[..., object]) -> bool:
    """Tell whether a function is `async def`, so that several calls of it can run at a time."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004  for inspect
    called = inspect.unwrap(called)
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
