"""Answers in several parts: a deadline of the server ends each but the last, and the next request continues it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import msgspec

from lmi_handlers.tools.client.answer import Piece, pieces
from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused
from lmi_handlers.tools.client.server import InvokeRequest, StreamedResponse

_MOST_LATE = 3
MAX_PARTS = 1000
"""Parts of an answer. With a minute each, they take 16 hours."""

MAX_SILENT_PARTS = 10
"""Parts in a row that bring no text. The server may hold back some: for example, a call that is not complete yet."""

Ask = Callable[[InvokeRequest], AbstractContextManager[StreamedResponse]]


def whole_answer(ask: Ask, invocation: InvokeRequest) -> Generator[Piece, None, None]:
    """Yield the pieces of an answer and of its continuations. Raises `AnswerFailed`, and the errors of `ask`.

    A continuation that gets no text before the server's time limit is asked for again, a few times. A server may send tokens
    for ever, so an answer of too many parts, or of many without text, has failed.
    """
    rest: InvokeRequest | None = invocation
    late = silent = parts = 0
    while rest is not None:
        token, is_silent = None, True
        if parts == MAX_PARTS or silent == MAX_SILENT_PARTS:
            what = f"after {parts} parts" if parts == MAX_PARTS else f"and the last {silent} parts have no text"
            raise AnswerFailed(f"the answer is not complete {what}: the server says that there is more")
        try:
            with ask(rest) as answer:
                for piece in pieces(answer.parts, answer.content_type):
                    token = piece.continuation or token  # some APIs have records after the one with the token
                    is_silent = is_silent and not piece.text
                    yield piece
        except CallRefused as refused:
            late += 1
            if rest is invocation or not refused.is_late or late > _MOST_LATE:
                raise
        else:
            late, parts, silent = 0, parts + 1, silent + 1 if is_silent else 0
            rest = None if token is None else _continued(rest, token)


def _continued(invocation: InvokeRequest, token: str) -> InvokeRequest | None:
    """Return the request for the rest of an answer, or None if the body has no place for its token."""
    try:
        fields = msgspec.json.decode(invocation.body, type=dict[str, msgspec.Raw])
        fields["continuation"] = msgspec.Raw(msgspec.json.encode(token))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return msgspec.structs.replace(invocation, body=msgspec.json.encode(fields))
