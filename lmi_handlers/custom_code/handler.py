"""Imports a model's own code and calls its function: answers as messages, errors with the author's frames only."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import lmi_handlers.custom_code.compat
from lmi_handlers.config.custom_code import FUNCTION, CustomCode
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.messages import Batch, Chunk, End, Head, Load, LoadError
from lmi_handlers.custom_code.outputs import FAILURE, Output

Answer = Iterator[Head | Chunk | End]

_OURS = str(Path(lmi_handlers.custom_code.compat.__path__[0]).parents[1])
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_NO_CONTENT = 204
_LAST = object()

logger = logging.getLogger(__name__)


class Handler:
    """A model's own code, loaded. Only the main thread calls it, one batch at a time."""

    def __init__(self, load: Load) -> None:
        """Import the file and call the function once without content. Raises whatever the code raises."""
        self._directory = load.code.directory
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._function = _import(load.code)
        first = self._call(Input(load.properties, function=FUNCTION))
        if first.code >= 300:
            raise ConfigError(
                f"{load.code.path}: {FUNCTION} answered the first call, which has the options and no content, with the status "
                f"{first.code}: {first.data().decode(errors='replace') or first.message}"
            )

    def answer(self, batch: Batch, is_aborted: Callable[[], bool]) -> Answer:
        """Yield the answers to all requests of a batch, each with one `End`. Only `BaseException`s are raised.

        A stream ends early once `is_aborted()` returns true. What `Output.finalize` asked for is done last.
        """
        requests = batch.invocations
        inputs = [Input(item.properties, item.parts, FUNCTION) for item in requests]
        try:
            output = self._call(Input.of_batch(inputs) if batch.dynamic else inputs[0])
            answers = self._answers(output, batch, is_aborted)
        except Exception as error:  # noqa: BLE001  the requests fail, whatever the code has raised
            answers = [_failed(index, error, item.request_id) for index, item in enumerate(requests)]
            output = Output()
        for answer in answers:
            yield from answer
        output.execute_finalize()

    def _answers(self, output: Output, batch: Batch, is_aborted: Callable[[], bool]) -> list[Answer]:
        """Return one answer per request. Raises `ValueError` or `TypeError` if the function has returned nonsense."""
        size = len(batch.invocations)
        if not 200 <= int(output.code) <= 599:
            raise ValueError(f"{FUNCTION} returned the status {output.code}: it must be from 200 to 599")
        if output.stream_content is None:
            return [_whole(output, index, size) for index in range(size)]
        if size > 1:
            raise TypeError(f"{FUNCTION} returned a stream for a batch of {size} requests")
        return [self._stream(output, batch.invocations[0].request_id, is_aborted)]

    def _call(self, inputs: Input) -> Output:
        os.chdir(self._directory)  # an earlier call may have changed it
        result = self._function(inputs)
        if inspect.isawaitable(result):
            result = self._loop.run_until_complete(_awaited(result))
        if result is None:
            return Output(_NO_CONTENT, "No content")
        if isinstance(result, Output):
            return result
        if inspect.isasyncgen(result) or inspect.isgenerator(result):
            return Output().add_stream_content(result)
        raise TypeError(f"Invalid output type: {type(result)}")

    def _stream(self, output: Output, request_id: str, is_aborted: Callable[[], bool]) -> Answer:
        items = self._items(output.stream_content)
        begun = False
        try:
            for item in items:
                if not begun:
                    begun = True
                    yield _stream_head(output, item)
                if data := output.format(item):
                    yield Chunk(0, data)
                if is_aborted():
                    break
            if not begun:
                yield _stream_head(output, None)
            yield End(0)
        except Exception as error:  # noqa: BLE001  as above
            yield from _failed(0, error, request_id)
        finally:
            items.close()

    def _items(self, stream: Any) -> Generator[Any]:
        """Yield the items of any iterable, or of an asynchronous generator."""
        if hasattr(stream, "__anext__"):
            stream = self._synchronous(stream)
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


def _import(code: CustomCode) -> Callable[[Input], Any]:
    """Import the file as a module of its own name, with its folder last on `sys.path`."""
    path = Path(code.path)
    sys.path += [lmi_handlers.custom_code.compat.__path__[0], str(code.directory)]
    os.chdir(code.directory)
    sys.argv[:] = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018  the name ends with .py
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise ConfigError(f"{path} defines no function {FUNCTION}(inputs)")
    return function  # type: ignore[no-any-return]  # the author's


def _stream_head(output: Output, first: object) -> Head:
    """Return the head of a stream. A generator of outputs has it in the first of them."""
    if isinstance(first, Output):
        return Head(0, int(first.code), {**output.properties, **first.properties}, streams=True)
    return Head(0, int(output.code), output.properties, streams=True)


def _whole(output: Output, index: int, size: int) -> Answer:
    """Return a request's part of an answer. Raises `ValueError` if a batch's answer has none for it."""
    if index in output.batch:
        data = output.data(index)
    elif output.batch or (size > 1 and output.code < 300 and output.code != _NO_CONTENT):
        raise ValueError(f"{FUNCTION} returned nothing for request {index} of the batch: use batch_index={index}")
    else:
        data = output.data()  # an error of the whole batch is an error of each of its requests
    head = Head(index, int(output.code), output.properties, streams=False)
    return iter((head, Chunk(index, data), End(index)))


def _failed(index: int, error: Exception, request_id: str) -> Answer:
    """Return the end of a request for which the code raised an error. LMI answers 507 if memory ran out."""
    logger.error("%s failed", FUNCTION, extra={"request_id": request_id, "exception": author_traceback(error)})
    cause = str(error) or type(error).__name__
    if type(error).__name__ in _OUT_OF_MEMORY:
        output = Output().error(cause, code=507, message=FAILURE)
        yield Head(index, 507, output.properties, streams=False)
        yield Chunk(index, output.data())
        yield End(index)
    else:
        yield End(index, cause)


def load_error(error: BaseException, code: CustomCode) -> LoadError:
    """Describe why the code cannot be used: file and line, and whether another try may help."""
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_below(frame.filename, code)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else code.path
    message = str(error) if isinstance(error, ConfigError) else f"{where}: {cause}"
    temporary = isinstance(load_failure(ConfigError(message), error), LoadFailed)
    return LoadError(message, author_traceback(error), temporary)


def author_traceback(error: BaseException) -> str:
    """Return the traceback without this server's own frames."""
    described = traceback.TracebackException.from_exception(error)
    _drop_ours(described, set())
    return "".join(described.format()).rstrip()


def _drop_ours(described: traceback.TracebackException, seen: set[int]) -> None:
    if id(described) in seen:
        return
    seen.add(id(described))
    kept = [frame for frame in described.stack if not _is_ours(frame.filename)]
    described.stack = traceback.StackSummary.from_list(kept)
    for cause in (described.__cause__, described.__context__):
        if cause is not None:
            _drop_ours(cause, seen)


def _is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen importlib"))


def _is_below(filename: str, code: CustomCode) -> bool:
    return Path(filename).is_relative_to(code.directory)
