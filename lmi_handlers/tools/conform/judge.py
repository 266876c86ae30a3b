"""Decides whether an answer is the reference's, apart from what depends on the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from lmi_handlers.tools.client.answer import failure_cause, media_type
from lmi_handlers.tools.conform.exchange import Received
from lmi_handlers.tools.conform.records import AnswerRecords, BrokenFormat, kind_of
from lmi_handlers.tools.conform.shape import difference
from lmi_handlers.tools.conform.vectors import Reference

Verdict = Literal["conforms", "differs", "not spoken", "error"]

_LONGEST_CAUSE = 300
NOT_SPOKEN = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
"""Statuses of servers that do not have the route."""

_NOT_LET_IN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Finding(msgspec.Struct, frozen=True):
    """The verdict on an answer, and the first difference, or the cause of an error."""

    verdict: Verdict
    difference: str | None = None


def judge(expected: Reference, reply: Received) -> Finding:
    """Compare an answer with the reference's."""
    if not _same_status(expected.status, reply.status):
        return _of_status(expected.status, reply)
    return Finding("conforms") if (found := _first_difference(expected, reply)) is None else Finding("differs", found)


def _same_status(expected: int | str, status: int) -> bool:
    if isinstance(expected, int):
        return status == expected
    return f"{status // 100}xx" == expected and status not in (*NOT_SPOKEN, *_NOT_LET_IN)  # these refuse any request


def _of_status(expected: int | str, reply: Received) -> Finding:
    cause = reply.headers.get("location", "")
    if reply.status >= HTTPStatus.BAD_REQUEST:
        cause = failure_cause(reply.body[:4096])
    found = f"status {reply.status} instead of {expected}" + (f": {cause[:_LONGEST_CAUSE]}" if cause else "")
    if reply.status in NOT_SPOKEN:
        return Finding("not spoken", found)
    is_error = reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status in _NOT_LET_IN
    return Finding("error" if is_error else "differs", found)


def _first_difference(expected: Reference, reply: Received) -> str | None:
    kind = reply.headers.get("content-type", "")
    if expected.content_type is not None and media_type(kind) != media_type(expected.content_type):
        return f"content type {kind[:_LONGEST_CAUSE] or 'missing'} instead of {expected.content_type}"
    for name in expected.headers:
        if name.lower() not in reply.headers:
            return f"header {name} is missing"
    if expected.seconds is not None and reply.seconds > expected.seconds:
        return f"{reply.seconds:.1f} s instead of at most {expected.seconds:g} s"
    if expected.records is None:
        return None
    try:
        records = AnswerRecords.of(reply.body, expected.content_type or "application/json")
    except BrokenFormat as error:
        return str(error)
    return _of_records(expected, expected.records, records)


def _of_records(expected: Reference, reference: AnswerRecords, found: AnswerRecords) -> str | None:
    if not expected.streams:
        return difference(reference.documents, found.documents[0], expected.rules)
    if reference.done != found.done:
        return "the stream does not end with [DONE]" if reference.done else "the stream ends with [DONE]"
    if reference.named and not found.named:
        return "events have no names"
    known: dict[str, list[Any]] = {}
    for kind, document in _kinds(reference.documents):
        known.setdefault(kind, []).append(document)
    if (wrong := _order(list(known), expected.optional_records, found.documents)) is not None:
        return wrong
    for number, (kind, document) in enumerate(_kinds(found.documents), 1):
        if kind in known and (wrong := difference(known[kind], document, expected.rules)) is not None:
            return f"{kind} (no. {number}): {wrong}"
    return None


def _order(expected: Sequence[str], optional: frozenset[str], documents: Sequence[Any]) -> str | None:
    """Return the first difference in the order of records. Those of one kind may follow each other in any number.

    Optional ones that the reference does not show may come anywhere.
    """
    place = 0
    for number, (kind, _) in enumerate(_kinds(documents), 1):
        if place and kind == expected[place - 1]:
            continue
        while place < len(expected) and kind != expected[place] and expected[place] in optional:
            place += 1
        if place < len(expected) and kind == expected[place]:
            place += 1
        elif kind in expected or kind not in optional:
            wanted = expected[place] if place < len(expected) else "the end"
            return f"record {number} is {kind!r}, not {wanted!r}"
    missing = [kind for kind in expected[place:] if kind not in optional]
    return f"there is no {missing[0]!r}" if missing else None


def _kinds(documents: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for number, document in enumerate(documents, 1):
        yield kind_of(document, is_last=number == len(documents)), document
