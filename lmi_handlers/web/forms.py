"""Reads forms, within limits: they are parsed on the event loop, a piece at a time."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from lmi_handlers.core.errors import PayloadTooLarge
from lmi_handlers.core.event_loop import give_way

_URL_ENCODED = "application/x-www-form-urlencoded"
FORM_TYPES = ("multipart/form-data", _URL_ENCODED)

MAX_FIELDS = 1000
"""Fields of a form. Each takes 30 us."""

MAX_HEADERS = 4096
"""Bytes of the headers of a field. Each of their lines becomes objects."""

_TOO_MANY_FIELDS = f"a form may have at most {MAX_FIELDS} fields"
_BLANK_LINE = re.compile(rb"\r\n\r\n|\r\r|\n\n")

_ESCAPED_PIECE = 1 << 13
"""Bytes of a URL-encoded form. If all of them are escapes, they take a millisecond."""

_PIECE = 1 << 14
"""Bytes of any other form. If they are small fields, or come before the first one, they take milliseconds."""

_SEARCHED_PIECE = 1 << 18
"""Bytes in which fields are looked for."""

_QUOTES = "werkzeug.url_quote"
"""Leaves escapes as they are that are not UTF-8, as werkzeug does."""


def form_parts(data: bytes, mimetype: str, options: dict[str, str]) -> list[tuple[str, bytes]]:
    """Return the fields and then the files of a form, whose content type has these `options`.

    Raises `PayloadTooLarge` if there are too many, or if the headers of one are too long.
    """
    if mimetype == _URL_ENCODED:
        return _url_encoded(data)
    _check_headers(data, options.get("boundary", "").encode(errors="replace"))
    parser = FormDataParser(stream_factory=_in_memory, silent=True, max_form_parts=MAX_FIELDS)
    try:
        _, fields, files = parser.parse(_InTurns(data), mimetype, len(data), options)
    except RequestEntityTooLarge:
        raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values") from None
    parts = [(name, value.encode()) for name, value in fields.items(multi=True)]
    for name, file in files.items(multi=True):
        with contextlib.closing(file):
            parts.append((name, file.read()))
    return parts


def _url_encoded(data: bytes) -> list[tuple[str, bytes]]:
    """Return the fields as werkzeug does, which would decode all of them at once. A form that is not UTF-8 has none."""
    if data.count(b"&") >= MAX_FIELDS:
        raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _SEARCHED_PIECE):
            decoder.decode(data[start : start + _SEARCHED_PIECE])
            give_way()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return []
    pairs = (field.partition(b"=") for field in data.split(b"&") if field)
    fields: dict[str, list[bytes]] = {}
    for name, _, value in pairs:
        fields.setdefault(_unescaped(name).decode(), []).append(_unescaped(value))
    return [(name, value) for name, values in fields.items() for value in values]


def _unescaped(text: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")(_QUOTES)
    plain = bytearray()
    for piece in _escaped_pieces(text):
        plain += decoder.decode(unquote_to_bytes(piece.replace(b"+", b" "))).encode()
        give_way()
    return bytes(plain + decoder.decode(b"", final=True).encode())


def _escaped_pieces(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces that split no escape, such as `%C3`."""
    start = 0
    while start < len(text):
        end = start + _ESCAPED_PIECE
        if end < len(text) and (escape := text.rfind(b"%", end - 2, end)) != -1:
            end = escape
        yield text[start:end]
        start = end


def _check_headers(data: bytes, boundary: bytes) -> None:
    if not boundary:
        return  # then it is not parsed
    for number, start in enumerate(_beginnings(data, b"--" + boundary)):
        if number >= MAX_FIELDS:
            raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values")
        end = start + MAX_HEADERS
        if end < len(data) and not _BLANK_LINE.search(data, start, end):
            raise PayloadTooLarge(
                f"a field of a form may have at most {MAX_HEADERS} bytes of headers", code="too_many_values"
            )


def _beginnings(data: bytes, delimiter: bytes) -> Iterator[int]:
    """Yield where the headers of each field begin: after the delimiter, which blanks and the end of the line follow.

    So many blanks that no header has room after them count as well.
    """
    begins = re.compile(rb"%b(?:[^\S\r\n]{%d}|[^\S\r\n]*[\r\n])" % (re.escape(delimiter), MAX_HEADERS))
    longest = len(delimiter) + MAX_HEADERS
    for start in range(0, len(data), _SEARCHED_PIECE):
        end = start + _SEARCHED_PIECE
        for match in begins.finditer(data, start, end + longest):
            if match.start() < end:  # others are in the next piece, too
                yield match.start() + len(delimiter)
        give_way()


class _InTurns(io.BytesIO):
    """A form that is read. Others get their turns in between."""

    def read(self, size: int | None = -1, /) -> bytes:
        give_way()
        return super().read(_PIECE if size is None or size < 0 else min(size, _PIECE))


def _in_memory(*_: object, **__: object) -> io.BytesIO:
    """Return what holds a file. Werkzeug's own writes large ones to a disk, which may be full or read-only."""
    return io.BytesIO()
