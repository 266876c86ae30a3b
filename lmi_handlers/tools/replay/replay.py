"""Sends recorded requests, at the times of the recording or with a fixed concurrency, and compares the answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import STREAMS, media_type
from lmi_handlers.tools.client.answer_format import records
from lmi_handlers.tools.client.apis import said
from lmi_handlers.tools.client.comparison import (
    VOLATILE,
    Comparison,
    CompleteAnswer,
    Kind,
    compare,
    finish_reason_of,
    text_of,
)
from lmi_handlers.tools.client.errors import AnswerFailed
from lmi_handlers.tools.replay.recordings import Broken, Recorded
from lmi_handlers.tools.replay.sampling import is_sampled
from lmi_handlers.tools.replay.scoring import NotScored, log_probability_gap
from lmi_handlers.tools.replay.targets import NoAnswer, Target, Timed

_LONGEST = 200
"""Characters of what an answer says about itself that are kept."""

FAILED, UNRECORDED, BROKEN = "failed", "unrecorded", "broken"
"""Outcomes of requests that nothing is compared for: no complete answer, none in the recording, and not readable."""

_MARGIN = 0.1
"""Nats by which the recorded token may be less probable than the one of the server, if a text parts by rounding."""

_MOST_PENDING = 10_000
"""Maximum number of outcomes that wait for an earlier one: a request that hangs holds up all those after it."""

_LONGEST_PAUSE = 1e8
"""Seconds between two requests, whatever the recording says: `time.sleep` takes no infinite ones."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says about itself. A count is None if it does not say."""

    status: int
    content_type: str
    bytes: int
    finish_reason: str
    tokens: int | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `kind` is one of `Kind`, or `FAILED`, `UNRECORDED` or `BROKEN`.

    `offset` is the first differing byte of the recorded body, and `expected` and `received` what is around it there and
    in the answer, without the fields named in `but_for`. Times are seconds since the request was sent.
    """

    number: int
    place: str
    kind: str
    detail: str = ""
    offset: int | None = None
    expected: str = ""
    received: str = ""
    but_for: tuple[str, ...] = ()
    recorded: Told | None = None
    answer: Told | None = None
    first_token_seconds: float | None = None
    total_seconds: float | None = None


class Pace(msgspec.Struct, frozen=True):
    """When requests are sent. Without `speed`, as soon as fewer than `concurrency` are unanswered.

    With it, at the times of the recording, so many times as fast, but at most `concurrency` at a time.
    """

    concurrency: int
    speed: float | None = None


class Replay:
    """A replay on one target. `ignored` are fields that are not compared, besides `VOLATILE`."""

    def __init__(self, target: Target, *, ignored: Iterable[str] = (), compare_sampled: bool = False) -> None:
        self._target = target
        self._volatile = (*VOLATILE, *ignored)
        self._compare_sampled = compare_sampled

    def outcomes(self, requests: Iterable[Recorded | Broken], pace: Pace) -> Iterator[Outcome]:
        """Send the requests, and yield their outcomes in the same order. Memory holds `concurrency` requests."""
        places = threading.BoundedSemaphore(pace.concurrency)
        pending: deque[Future[Outcome] | Outcome] = deque()
        clock = _Clock(pace.speed)
        pool = ThreadPoolExecutor(pace.concurrency)
        try:
            for number, request in enumerate(requests, 1):
                if isinstance(request, Broken):
                    pending.append(Outcome(number=number, place=request.place, kind=BROKEN, detail=request.cause))
                else:
                    clock.wait(request.time)
                    places.acquire()
                    future = pool.submit(self._outcome, number, request)
                    future.add_done_callback(lambda _: places.release())
                    pending.append(future)
                while pending and (_is_ready(pending[0]) or len(pending) > _MOST_PENDING):
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _outcome(self, number: int, request: Recorded) -> Outcome:
        try:
            return self._asked(number, request)
        except NoAnswer as error:
            cause = str(error)
        except Exception as error:  # noqa: BLE001  the others go on
            cause = f"{type(error).__name__}: {error}"
        return Outcome(number=number, place=request.place, kind=FAILED, detail=cause)

    def _asked(self, number: int, request: Recorded) -> Outcome:
        timed = self._target.ask(request)
        common: dict[str, Any] = {
            "number": number,
            "place": request.place,
            "answer": told(timed.reply),
            "first_token_seconds": timed.first,
            "total_seconds": timed.total,
        }
        if request.answer is None:
            return Outcome(kind=UNRECORDED, **common)
        recorded = told(request.answer)
        found = self._compared(request, request.answer, recorded, timed)
        return Outcome(
            kind=found.kind.value,
            detail=found.detail,
            offset=found.offset,
            expected=found.expected,
            received=found.received,
            but_for=found.but_for,
            recorded=recorded,
            **common,
        )

    def _compared(self, request: Recorded, expected: CompleteAnswer, recorded: Told, timed: Timed) -> Comparison:
        recorded_text = _text(expected)
        # Tool calls have a finish reason and no text; embeddings have neither.
        is_generated = bool(recorded_text or recorded.finish_reason)
        sampled = not self._compare_sampled and is_generated and is_sampled(request)
        found = compare(expected, timed.reply, sampled=sampled, volatile=self._volatile)
        if found.kind is not Kind.TEXT or sampled:
            return found
        try:
            gap = log_probability_gap(request, (recorded_text, _text(timed.reply)), self._ask)
        except NotScored as error:
            return msgspec.structs.replace(found, detail=f"{found.detail} (not scored: {error})")
        kind = Kind.ROUNDING if abs(gap) <= _MARGIN else Kind.TEXT
        detail = f"{found.detail}; the recorded token is {gap:.3g} nats less probable"
        return msgspec.structs.replace(found, kind=kind, detail=detail)

    def _ask(self, request: Recorded) -> CompleteAnswer:
        return self._target.ask(request).reply


def _is_ready(found: Future[Outcome] | Outcome) -> bool:
    return isinstance(found, Outcome) or found.done()


def _result(found: Future[Outcome] | Outcome) -> Outcome:
    return found if isinstance(found, Outcome) else found.result()


class _Clock:
    """Waits until it is a request's turn. The first one with a time begins the replay."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._first: float | None = None
        self._began = 0.0

    def wait(self, recorded: float | None) -> None:
        if self._speed is None or recorded is None:
            return
        if self._first is None:
            self._first, self._began = recorded, time.monotonic()
        due = self._began + (recorded - self._first) / self._speed
        time.sleep(min(max(0.0, due - time.monotonic()), _LONGEST_PAUSE))


def told(reply: CompleteAnswer) -> Told:
    """Return what an answer says about itself."""
    documents = records(reply.body, reply.content_type or "application/json") or []
    return Told(
        status=reply.status,
        content_type=reply.content_type[:_LONGEST],
        bytes=len(reply.body),
        finish_reason=finish_reason_of(documents)[:_LONGEST],
        tokens=_tokens(documents, streams=media_type(reply.content_type) in STREAMS),
    )


def _tokens(documents: list[Any], *, streams: bool) -> int | None:
    """Return the number of generated tokens: the server's count, or else the number of records with text in a stream."""
    count, texts = None, 0
    for document in documents:
        try:
            record = said(document)
        except (AnswerFailed, RecursionError):
            continue
        texts += bool(record.text or record.special)
        count = count if record.output_tokens is None else record.output_tokens
    return texts if count is None and streams else count


def _text(reply: CompleteAnswer) -> str:
    return text_of(records(reply.body, reply.content_type or "application/json") or [])
