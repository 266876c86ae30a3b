"""JSON-lines bodies: one record per line, one answer line per record. SageMaker's batch transform sends them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.invocations import Invocations
from lmi_handlers.apis.server import LINES_AT_A_TIME
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    LMIError,
    QueueFull,
    UnsupportedFeature,
)
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving.answer import Answer
from lmi_handlers.serving.continuation import FIELD as CONTINUATION
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.body_dialects import BodyDialects
from lmi_handlers.web.exchange import Exchange, given_continuation, take_continuation

CONTENT_TYPES = ("application/jsonlines", "application/jsonl", "application/x-jsonlines", "application/x-ndjson")


class BatchBodies:
    """Answers JSON-lines bodies."""

    def __init__(
        self, model: ServedModel, endpoint: Invocations, dialects: BodyDialects, properties: ServingProperties
    ) -> None:
        self._model = model
        self._endpoint = endpoint
        self._dialects = dialects
        self._budget = Budget.of(properties)
        self._timeout = properties.batch_timeout

    def lines(self, exchange: Exchange, payload: Payload) -> Iterator[bytes]:
        """Yield one answer line per record, in order. A record that fails gets its error as the answer line."""
        exchange.counts = False  # its records are counted instead
        deadline = time.monotonic() + self._timeout
        begun: deque[_Record] = deque()
        try:
            for position, data in enumerate(records(payload.data)):
                if len(begun) == LINES_AT_A_TIME:
                    yield self._line(exchange, begun.popleft())
                request_id = f"{payload.request_id}-{position}"
                of_record = msgspec.structs.replace(payload, data=data, stream=False, request_id=request_id)
                begun.append(self._begin(exchange, of_record, self._usage(exchange), deadline))
                give_way()
            while begun:
                yield self._line(exchange, begun.popleft())
        finally:
            for record in begun:
                outcome: LMIError | None = record.answer if isinstance(record.answer, LMIError) else None
                if isinstance(record.answer, Answer):
                    record.answer.close()
                    outcome = ClientDisconnected()
                self._model.metrics.ended(record.usage, outcome)

    @staticmethod
    def _usage(exchange: Exchange) -> Usage:
        usage = exchange.usage
        return Usage(
            started=time.monotonic(),
            key_label=usage.key_label,
            tenant=usage.tenant,
            tenant_digest=usage.tenant_digest,
        )

    def _begin(self, exchange: Exchange, payload: Payload, usage: Usage, deadline: float) -> _Record:
        answer: Answer | LMIError
        try:
            answer = self._start(exchange, payload, usage, deadline)
        except LMIError as error:
            answer = error.without_frames()
        return _Record(payload, usage, deadline, answer)

    def _start(self, exchange: Exchange, payload: Payload, usage: Usage, deadline: float) -> Answer:
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"the batch did not finish within {self._timeout} s (option.batch_timeout)",
                code="batch_deadline_exceeded",
            )
        self._budget.check_json(payload.data)
        formatted, dialect, change = self._dialects.choose(exchange, payload, usage)
        token = exchange.continuation
        if formatted is not payload and self._model.continues:
            token = token or given_continuation(payload)
        if token is not None or take_continuation(formatted)[0] is not None:
            raise UnsupportedFeature("answers in a batch are not cut, and none is continued there", field=CONTINUATION)
        parsed = change(formatted.parsed_by(dialect))
        if parsed.request.stream:
            raise InvalidRequest("is not supported in a batch: each record is answered on one line", field="stream")
        within = self._model.deadline(usage.started, exchange.connected)
        return self._model.start_generation(parsed, usage, within)

    def _line(self, exchange: Exchange, record: _Record) -> bytes:
        body, failure = self._finish(exchange, record)
        exchange.usage.generated_tokens += record.usage.generated_tokens
        exchange.usage.prompt_tokens += record.usage.prompt_tokens
        exchange.usage.cached_tokens += record.usage.cached_tokens
        self._model.metrics.ended(record.usage, failure)
        if isinstance(failure, ClientDisconnected):
            raise ClientDisconnected(str(failure))
        line = body.strip()
        if b"\n" in line:
            try:
                line = msgspec.json.format(line, indent=0)
            except (msgspec.DecodeError, RecursionError):  # a formatter of the model's writes what it likes
                line = msgspec.json.encode(line.decode(errors="replace"))
        return line + b"\n"

    def _finish(self, exchange: Exchange, record: _Record) -> tuple[bytes, LMIError | None]:
        """Wait for a record's answer. If the queue is full, start it again: other records of the batch make room."""
        while True:
            try:
                if isinstance(record.answer, LMIError):
                    raise record.answer
                return b"".join(record.answer), record.answer.failure
            except QueueFull as error:
                time.sleep(max(min(error.retry_after, record.deadline - time.monotonic()), 0))
            except LMIError as error:
                return self._endpoint.of(record.payload).error(error).body, error.without_frames()
            if not exchange.connected():
                return b"", ClientDisconnected()
            record.usage.started = time.monotonic()  # predict_timeout applies to each try, batch_timeout to all
            record = self._begin(exchange, record.payload, record.usage, record.deadline)


@dataclass(frozen=True)
class _Record:
    """One record that was started. If it could not be, `answer` is the error."""

    payload: Payload
    usage: Usage
    deadline: float
    answer: Answer | LMIError


def records(data: bytes) -> Iterator[bytes]:
    """Yield each line that is not blank."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end == -1 else end
        line = data[start:end].strip()
        if line:
            yield line
        start = end + 1


def is_batch(data: bytes) -> bool:
    """Return whether there are several records. A single record is answered like any other body."""
    return len(list(islice(records(data), 2))) > 1
