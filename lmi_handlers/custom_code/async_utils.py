"""`djl_python.async_utils`: what LMI documents for a `handle` that is `async def`.

LMI's functions encode an answer for its front end. Here they return an `Output` with the same status, headers and body.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from lmi_handlers.custom_code.outputs import Output

logger = logging.getLogger(__name__)


def create_non_stream_output(
    data: str | Mapping[str, Any],
    properties: Mapping[str, object] | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """Return a whole answer: a text, or a dict as JSON, and a line end. `properties` are response headers.

    With a `code`, the answer is `{"code": .., "error": ..}` with this status.
    """
    return _output(data, "application/json", properties, error, code)


def create_stream_chunk_output(
    data: str | Mapping[str, Any],
    last_chunk: bool,  # noqa: ARG001  LMI's signature
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """Return a part of a stream: a line. With a `code`, it is `{"code": .., "error": ..}`."""
    return _output(data, "application/jsonlines", None, error, code)


async def handle_streaming_response(
    response: AsyncIterator[Any],
    stream_output_formatter: Callable[..., tuple[Any, ...]],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncGenerator[Output]:
    """Yield an output for each item of `response`, until the formatter says that it is the last one.

    The formatter is called with the item and `kwargs`, and returns `(data, last)`. With `accumulate_chunks`, it also gets
    `history`, None at first, and returns `(data, last, history)`. If it fails, the stream ends with a record that says so.
    """
    history = None
    async for chunk in response:
        try:
            if accumulate_chunks:
                data, last, history = stream_output_formatter(chunk, history=history, **kwargs)
            else:
                data, last = stream_output_formatter(chunk, **kwargs)
        except Exception as error:
            logger.exception("a stream_output_formatter failed")
            yield create_stream_chunk_output("", last_chunk=True, error=str(error), code=424)
            return
        yield create_stream_chunk_output(data, last)
        if last:
            return


def _output(
    data: str | Mapping[str, Any],
    content_type: str,
    properties: Mapping[str, object] | None,
    error: str | None,
    code: int | None,
) -> Output:
    output = Output(code=code or 200).add_property("Content-Type", content_type)
    for name, value in (properties or {}).items():
        output.add_property(name, value)
    if code:
        data = {"code": code} | ({"error": error} if error else {})
    return output.add(f"{data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n")
