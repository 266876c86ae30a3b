"""Recorded requests: SageMaker's Data Capture as JSON lines, or files of a folder.

Files are read line by line, so a recording may be of any size. What cannot be read does not end the replay.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import IO, Any

import msgspec

from lmi_handlers.core.errors import LMIError
from lmi_handlers.tools.client.comparison import CompleteAnswer
from lmi_handlers.tools.client.inputs import InputFile

MAX_LINE = 96 << 20
"""Bytes of a line. SageMaker's largest body has 25 MiB, and is a third longer in BASE64."""

ROUTE = "/invocations"
"""The only route that SageMaker's endpoints have."""

_LINES = (".jsonl", ".jsonl.gz")
_SKIPPED = 1 << 20
_REQUEST = re.compile(r"(?P<name>.+)\.request\.(?P<type>[a-z]+)")
_ANSWER = re.compile(r"(?P<name>.+)\.answer(?:\.(?P<status>[1-5][0-9]{2}))?\.(?P<type>[a-z]+)")
_TYPES = {
    "json": "application/json",
    "jsonl": "application/jsonlines",
    "sse": "text/event-stream",
    "txt": "text/plain",
    "csv": "text/csv",
}
"""Content types by the ends of names."""

_EDITED = ("application/json", "text/plain")
"""Types of answers that end without a newline, which editors put at the end of files."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded request. `place` says where it stands: the file, and its line if the file has several.

    `time` is when it arrived, in seconds since 1970. `answer` is None if there is no record of it.
    """

    place: str
    body: bytes
    content_type: str
    route: str = ROUTE
    time: float | None = None
    answer: CompleteAnswer | None = None


class Broken(msgspec.Struct, frozen=True):
    """A line or a file that holds no request. `cause` says why."""

    place: str
    cause: str


class _Data(msgspec.Struct):
    data: str = ""
    encoding: str = "NONE"
    observedContentType: str = ""  # noqa: N815  as Data Capture calls it


class _CaptureData(msgspec.Struct):
    endpointInput: _Data | None = None  # noqa: N815
    endpointOutput: _Data | None = None  # noqa: N815


class _Metadata(msgspec.Struct):
    inferenceTime: str | None = None  # noqa: N815


class _Capture(msgspec.Struct):
    """A line of Data Capture. The custom attributes and ids in it are not read: a replay never sends what may be secret."""

    captureData: _CaptureData  # noqa: N815
    eventMetadata: _Metadata | None = None  # noqa: N815


def recorded_requests(files: list[InputFile]) -> Iterator[Recorded | Broken]:
    """Yield the requests of all files, in their order."""
    named = {file.name: file for file in files}
    answers = {}
    for name in named:
        if (found := _ANSWER.fullmatch(name)) and found["type"] in _TYPES:
            answers[found["name"]] = (name, int(found["status"] or 200), _TYPES[found["type"]])
    asked = {found["name"] for name in named if (found := _REQUEST.fullmatch(name)) and found["type"] in _TYPES}
    taken = {answers[name][0] for name in answers.keys() & asked}
    for name, file in named.items():
        if name in taken:
            continue
        try:
            if (found := _REQUEST.fullmatch(name)) and found["type"] in _TYPES:
                yield _of_file(file, found, named, answers.get(found["name"]))
            elif name.endswith(_LINES):
                yield from _of_lines(file)
            elif len(files) == 1:  # under any name
                for line in _of_lines(file):
                    yield Broken(line.place, line.cause + _hint(name)) if isinstance(line, Broken) else line
            else:
                cause = f"not {_LINES[0]}, nor .request.json, nor an .answer.json to one"
                yield Broken(name, cause + _hint(name))
        except (OSError, EOFError, zlib.error, LMIError) as error:  # the last is of S3, or `_Unreadable`
            yield Broken(name, str(error))


def _hint(name: str) -> str:
    """Return what to do about a file of an unexpected name that is probably a request."""
    stem, _, kind = name.rpartition(".")
    if not stem or kind not in _TYPES or _ANSWER.fullmatch(name):
        return ""
    return f"; a request's name is {PurePosixPath(stem).name}.request.{kind}"


def _of_file(
    file: InputFile, found: re.Match[str], files: dict[str, InputFile], answer: tuple[str, int, str] | None
) -> Recorded:
    folder = PurePosixPath(found["name"]).parent.as_posix()
    expected = None
    if answer is not None:
        name, status, content_type = answer
        content = _content(files[name])
        if content_type in _EDITED:
            content = content.removesuffix(b"\n")
        expected = CompleteAnswer(status, content_type, content)
    return Recorded(
        place=file.name,
        body=_content(file),
        content_type=_TYPES[found["type"]],
        route=ROUTE if folder == "." else f"/{folder}",
        answer=expected,
    )


def _content(file: InputFile) -> bytes:
    with file.open(compressed=False) as content:
        data = content.read(MAX_LINE + 1)
    if len(data) > MAX_LINE:
        raise _Unreadable(f"the file is longer than {MAX_LINE} bytes")
    return data


def _of_lines(file: InputFile) -> Iterator[Recorded | Broken]:
    with file.open(compressed=file.name.endswith(".gz")) as content:
        for number, line in enumerate(_lines(content), 1):
            place = f"{file.name}:{number}"
            if line is None:
                yield Broken(place, f"the line is longer than {MAX_LINE} bytes")
            elif line.strip():
                try:
                    yield _of_capture(line, place)
                except _Unreadable as error:
                    yield Broken(place, str(error))


def _lines(content: IO[bytes]) -> Iterator[bytes | None]:
    """Yield each line, or None for one that is too long."""
    while line := content.readline(MAX_LINE + 1):
        if len(line) <= MAX_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = content.readline(_SKIPPED)
        yield None


class _Unreadable(LMIError):
    """A recording is not as expected."""


def _of_capture(line: bytes, place: str) -> Recorded:
    try:
        capture = msgspec.json.decode(line, type=_Capture)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _Unreadable(f"not a record of Data Capture: {error}") from error
    given, answer = capture.captureData.endpointInput, capture.captureData.endpointOutput
    if given is None:
        raise _Unreadable("the record has no endpointInput: CaptureOptions must have Input and Output")
    return Recorded(
        place=place,
        body=_decoded(given),
        content_type=given.observedContentType or "application/json",
        time=_seconds(capture.eventMetadata),
        answer=None if answer is None else CompleteAnswer(200, answer.observedContentType, _decoded(answer)),
    )


def _decoded(data: _Data) -> bytes:
    """Return the bytes of a body. Raises `_Unreadable`."""
    encoding = data.encoding.upper()
    if encoding == "BASE64":
        try:
            return base64.b64decode(data.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise _Unreadable(f"not BASE64: {error}") from error
    if encoding not in ("JSON", "CSV", "NONE"):
        raise _Unreadable(f"the encoding {data.encoding[:20]!r} is not JSON, CSV or BASE64")
    return data.data.encode()


def _seconds(metadata: Any) -> float | None:
    """Return when a request arrived, or None if the record does not say so."""
    text = metadata.inferenceTime if metadata is not None else None
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
