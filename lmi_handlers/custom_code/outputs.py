"""The result of `handle`: `djl_python.Output`, with the methods that LMI documents."""

from __future__ import annotations

import datetime
import json
import logging
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from lmi_handlers.custom_code import ndlist
from lmi_handlers.custom_code.pair_list import PairList

FAILURE = "invoke handler failure"

_AS_LINES: Any = object()
"""The formatter of a stream for which none is given."""

logger = logging.getLogger(__name__)


class Output:
    """An answer: status code, properties (the response headers), and content, or a stream of it.

    Of several contents, the one named "data" is sent, or else the first. Without the property `Content-Type`, the
    response has no such header.
    """

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, str] = {}
        self.content = PairList()
        self.stream_content: Any = None
        self.output_formatter: Any = _AS_LINES
        self.batch: dict[int, PairList] = {}
        """The contents of `add` with a `batch_index`."""
        self._finalize: tuple[Callable[..., object], tuple[Any, ...]] | None = None

    def __str__(self) -> str:
        content = {
            str(key): f"type: {type(value)}" for key, value in zip(self.content.keys, self.content.values, strict=True)
        }
        return json.dumps(
            {"code": self.code, "message": self.message, "properties": self.properties, "content": content}, indent=2
        )

    def set_code(self, code: int) -> Output:
        """Set the HTTP status."""
        self.code = code
        return self

    def set_message(self, message: str) -> Output:
        """Set the message, which only `error` and the log show."""
        self.message = message
        return self

    def error(self, error: str, code: int = 424, message: str = FAILURE) -> Output:
        """Answer with `{"code": .., "message": .., "error": ..}` and that status."""
        self.code = code
        self.message = message
        self.add_property("Content-Type", "application/json")
        return self.add_as_json({"code": code, "message": message, "error": str(error)})

    def add_property(self, key: str, val: object) -> Output:
        """Set a response header."""
        self.properties[str(key)] = str(val)
        return self

    def get_properties(self) -> dict[str, str]:
        """Return the response headers."""
        return self.properties

    def get_property(self, key: str) -> str | None:
        """Return a response header, or None."""
        return self.properties.get(key)

    def add(self, value: object, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add content: text, bytes or a value that becomes JSON. `batch_index` is the request it answers."""
        content = self.content if batch_index is None else self.batch.setdefault(batch_index, PairList())
        content.add(None if key is None else str(key), encode(value))
        return self

    def add_as_string(self, value: str, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add text."""
        return self.add(value, key, batch_index)

    def add_as_json(self, val: object, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add a value as JSON."""
        return self.add(encode_json(val), key, batch_index)

    def add_as_numpy(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add an array, or a list of arrays, as an NDList."""
        return self.add(ndlist.encode(np_list), key, batch_index)

    def add_as_npz(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add a list of arrays as an .npz archive."""
        return self.add(ndlist.encode_npz(np_list), key, batch_index)

    def add_stream_content(self, stream_content: Any, output_formatter: Any = _AS_LINES) -> Output:
        """Answer with a stream: each item of a generator, or of an asynchronous one, is sent as soon as it is there.

        By default, an item becomes the line `{"outputs": item}`. `output_formatter` is called with each item and returns
        what to send. With None, text and bytes are sent as they are, and any other value as JSON.
        """
        self.stream_content = stream_content
        self.output_formatter = output_formatter
        return self

    @staticmethod
    def binary_encode(data: Mapping[str, object]) -> bytearray:
        """Return names and values as LMI's rolling batch sends them: their number, then texts with their length."""
        message = bytearray(struct.pack(">h", len(data)))
        for name, value in data.items():
            Output.write_utf8(message, name)
            Output.write_utf8(message, str(value))
        return message

    @staticmethod
    def write_utf8(msg: bytearray, val: str | None) -> None:
        """Append a text and its length in bytes. The length of None is -1."""
        encoded = b"" if val is None else val.encode()
        msg += struct.pack(">i", -1 if val is None else len(encoded)) + encoded

    def finalize(self, func: Callable[..., object], *args: Any) -> Output:
        """Call `func(*args)` once the answer has been sent."""
        self._finalize = func, args
        return self

    def execute_finalize(self) -> None:
        """Do what `finalize` asked for. An exception is logged."""
        if self._finalize is not None:
            func, args = self._finalize
            try:
                func(*args)
            except BaseException:
                logger.exception("the function given to Output.finalize failed")

    def data(self, batch_index: int | None = None) -> bytes:
        """Return the content that is sent, for one request of a batch or for all."""
        content = self.content if batch_index is None else self.batch[batch_index]
        if content.is_empty():
            return b""
        named = content.get("data")
        return bytes(content.value_at(0) if named is None else named)

    def format(self, item: Any) -> bytes:
        """Return the bytes of an item of the stream."""
        if isinstance(item, Output):
            return item.data()
        if self.output_formatter is _AS_LINES:
            return item if isinstance(item, bytes) else json.dumps({"outputs": item}, default=builtin).encode() + b"\n"
        return encode(item if self.output_formatter is None else self.output_formatter(item))


def text_or_line(item: Any) -> bytes:
    """Return text and bytes as they are, and any other value as a line of JSON: a formatter for generators of ours."""
    if isinstance(item, str | bytes | bytearray | memoryview):
        return encode(item)
    return json.dumps(item, default=builtin).encode() + b"\n"


def encode(value: object) -> bytes:
    """Return text in UTF-8, bytes as they are, and any other value as JSON."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return encode_json(value)


def encode_json(value: object) -> bytes:
    """Encode as DJL does: indented by two, without a space after the colon; numpy's numbers and arrays are known."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=2, separators=(",", ":"), default=builtin
    ).encode()


def builtin(value: Any) -> object:
    """Return a value that JSON has in place of a date, or of one of numpy's numbers and arrays. Raises `TypeError`."""
    if isinstance(value, datetime.datetime | datetime.date):
        return str(value)
    numpy = sys.modules.get("numpy")  # a value of its types exists only if it has been imported
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
