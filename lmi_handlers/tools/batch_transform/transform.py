"""Sends the records of one request, and makes output lines of the answer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lmi_handlers.core.errors import LMIError
from lmi_handlers.tools.batch_transform.endpoint import BUSY, HttpResponse, ServerClient, ServerLost
from lmi_handlers.tools.batch_transform.processing import BadRecord, DataProcessor
from lmi_handlers.tools.batch_transform.records import Record, TooLarge
from lmi_handlers.tools.batch_transform.settings import JSON_LINES, Settings
from lmi_handlers.tools.client.errors import code_of, error_document, is_error

_TIMED_OUT = 504
_SENT_AGAIN = (429, 500, 503, 504)
"""Codes of error lines that may be the fault of the server, not of the record."""

_MAX_QUOTED = 1000
"""Characters of an error that is quoted as the cause of a failure."""


class RecordFailed(LMIError):
    """A record has failed, and its file with it."""


class Transformed(msgspec.Struct):
    """The output of some records, and how many of them have an error in its place."""

    data: bytes
    records: int
    errors: int


Sent = tuple[bytes, bytes]
"""A record, and what the model gets of it."""


class Transform:
    """Turns records into output. Thread-safe.

    If a request with several records fails for what may be a record's fault, its halves are sent again. So a bad record
    spoils no others, whatever the model does with it. A record that fails for what may be the server's fault is sent
    again by itself.
    """

    def __init__(self, endpoint: ServerClient, settings: Settings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._processor = DataProcessor(settings)
        self._end = b"\n" if settings.lines else b""

    def output(self, records: list[Record]) -> Transformed:
        """Return the output of records, in order.

        Raises `RecordFailed` if a record fails and errors have no place in the output, and `ServerLost`.
        """
        parts: list[Transformed] = []
        run: list[Sent] = []
        for record in records:
            sent = self._sent(record)
            if isinstance(sent, bytes):
                parts += [*self._outputs(run), self._failed(record, sent)]
                run = []
            else:
                run.append(sent)
        parts += self._outputs(run)
        return Transformed(
            b"".join([part.data for part in parts]),
            sum(part.records for part in parts),
            sum(part.errors for part in parts),
        )

    def _sent(self, record: Record) -> Sent | bytes:
        """Return a record with what the model gets of it, or the error if there is nothing to send."""
        if isinstance(record, TooLarge):
            return error_document(
                413, f"the record has {record.size} bytes, more than a request may have (--max-payload-in-mb)"
            )
        try:
            return record, self._processor.request(record)
        except BadRecord as error:
            return error_document(400, str(error))

    def _outputs(self, run: list[Sent]) -> Iterator[Transformed]:
        if not run:
            return
        body = b"".join([sent for _, sent in run])
        answer = self._endpoint.invoke(body, self._settings.content_type, self._settings.accept)
        if answer.status in BUSY and not (len(run) == 1 and answer.status == _TIMED_OUT):
            raise ServerLost(f"{self._endpoint.url}: {_error_of(answer).decode()}")
        if len(run) == 1:
            record = run[0][0]
            yield self._output(record, self._line(answer)) if answer.ok else self._failed(record, _error_of(answer))
        elif answer.ok and self._keeps(answer):
            yield Transformed(answer.body, len(run), 0)
        elif answer.ok and len(lines := _lines(answer.body)) == len(run):
            for sent, line in zip(run, lines, strict=True):
                if self._settings.max_retries and code_of(line) in _SENT_AGAIN:
                    yield from self._outputs([sent])
                else:
                    yield self._output(sent[0], line)
        else:
            middle = len(run) // 2
            yield from self._outputs(run[:middle])
            yield from self._outputs(run[middle:])

    def _keeps(self, answer: HttpResponse) -> bool:
        """True if an answer to several records is kept as it is, because it has a format of its own."""
        return not self._settings.lines and answer.content_type not in JSON_LINES

    def _line(self, answer: HttpResponse) -> bytes:
        """Return the answer to a single record, on one line if outputs are lines."""
        if not self._settings.lines:
            return answer.body
        line = answer.body.strip()
        if b"\n" not in line:
            return line
        if line[:1] not in (b"{", b"["):
            return msgspec.json.encode(line.decode(errors="replace"))
        try:
            return msgspec.json.format(line, indent=0)
        except (msgspec.DecodeError, RecursionError):
            return error_document(400, "its output is not one line, nor one JSON document: a stream is not supported")

    def _output(self, record: bytes, line: bytes) -> Transformed:
        if is_error(line):
            return self._failed(record, line)
        try:
            return Transformed(self._ended(self._processor.output(record, line)), 1, 0)
        except BadRecord as error:
            return self._failed(record, error_document(400, str(error)))

    def _failed(self, record: Record, error: bytes) -> Transformed:
        if not self._settings.in_place:
            raise RecordFailed(f"a record has failed: {error.decode(errors='replace')[:_MAX_QUOTED]}")
        data = record if isinstance(record, bytes) else None
        return Transformed(self._ended(self._processor.failure(data, error)), 1, 1)

    def _ended(self, data: bytes) -> bytes:
        return data if data.endswith(self._end) else data + self._end


def _lines(body: bytes) -> list[bytes]:
    return [line for line in body.splitlines() if line and not line.isspace()]


def _error_of(answer: HttpResponse) -> bytes:
    """Return the error document of an answer, on one line."""
    try:
        document = msgspec.json.format(answer.body.strip(), indent=-1)
    except (msgspec.DecodeError, RecursionError):
        document = b""
    return document if document.startswith(b"{") else error_document(answer.status, answer.cause)
