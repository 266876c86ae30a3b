"""Reads forms, within limits: they are parsed on the event loop."""

from __future__ import annotations

import contextlib
import io
import re

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from lmi_handlers.core.errors import PayloadTooLarge

_URL_ENCODED = "application/x-www-form-urlencoded"
FORM_TYPES = ("multipart/form-data", _URL_ENCODED)

MAX_FIELDS = 1000
"""Fields of a form. Each takes 30 us."""

MAX_HEADERS = 4096
"""Bytes of the headers of a field. Each of their lines becomes objects."""

_TOO_MANY_FIELDS = f"a form may have at most {MAX_FIELDS} fields"
_BLANK_LINE = re.compile(rb"\r\n\r\n|\r\r|\n\n")


def form_parts(data: bytes, mimetype: str, options: dict[str, str]) -> list[tuple[str, bytes]]:
    """Return the fields and then the files of a form, whose content type has these `options`.

    Raises `PayloadTooLarge` if there are too many, or if the headers of one are too long.
    """
    if mimetype == _URL_ENCODED:
        if data.count(b"&") >= MAX_FIELDS:
            raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values")
    else:
        _check_headers(data, options.get("boundary", "").encode(errors="replace"))
    parser = FormDataParser(stream_factory=_in_memory, silent=True, max_form_parts=MAX_FIELDS)
    try:
        _, fields, files = parser.parse(io.BytesIO(data), mimetype, len(data), options)
    except RequestEntityTooLarge:
        raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values") from None
    parts = [(name, value.encode()) for name, value in fields.items(multi=True)]
    for name, file in files.items(multi=True):
        with contextlib.closing(file):
            parts.append((name, file.read()))
    return parts


def _check_headers(data: bytes, boundary: bytes) -> None:
    if not boundary:
        return  # then it is not parsed
    begins = re.compile(rb"(?=--%b[^\S\r\n]*[\r\n])" % re.escape(boundary))
    for number, match in enumerate(begins.finditer(data)):
        if number >= MAX_FIELDS:
            raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values")
        start = match.start() + len(boundary)
        end = start + MAX_HEADERS
        if end < len(data) and not _BLANK_LINE.search(data, start, end):
            raise PayloadTooLarge(
                f"a field of a form may have at most {MAX_HEADERS} bytes of headers", code="too_many_values"
            )


def _in_memory(*_: object, **__: object) -> io.BytesIO:
    """Return what holds a file. Werkzeug's own writes large ones to a disk, which may be full or read-only."""
    return io.BytesIO()
