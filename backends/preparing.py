"""Sequences whose grammar is being compiled: they have been handed to a backend, and its engine has not heard of them."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic, TypeVar

from lmi_handlers.errors import InvalidRequest, RequestError
from lmi_handlers.outputs import FinishReason, TokenOutput

_WAIT = 0.02

Sequence = TypeVar("Sequence")
Compiled = TypeVar("Compiled")


class Preparing(Generic[Sequence, Compiled]):
    """By request id, in the order of arrival. For one thread."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Sequence, Future[Compiled]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def add(self, request_id: str, sequence: Sequence, future: Future[Compiled]) -> None:
        """Take in a sequence that can start once `future` has its grammar."""
        self._entries[request_id] = sequence, future

    def discard(self, request_id: str) -> bool:
        """Forget a sequence; False where there is none of that id."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            entry[1].cancel()
        return entry is not None

    def collect(self) -> tuple[list[tuple[Sequence, Compiled]], list[TokenOutput]]:
        """Take out those whose grammar is there, and the last output of those that have none."""
        ready, refused = [], []
        for request_id in [request_id for request_id, (_, future) in self._entries.items() if future.done()]:
            sequence, future = self._entries.pop(request_id)
            try:
                ready.append((sequence, future.result()))
            except RequestError as error:
                refused.append(refusal(request_id, error))
        return ready, refused

    def wait(self) -> None:
        """Let a moment pass, less where a grammar is done before; for a backend that has nothing else to do."""
        wait([future for _, future in self._entries.values()], _WAIT, FIRST_COMPLETED)


def refusal(request_id: str, error: RequestError) -> TokenOutput:
    """Return the one output of a sequence that never starts."""
    return TokenOutput(
        request_id=request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=error.message if isinstance(error, InvalidRequest) else str(error),
        invalid_request=isinstance(error, InvalidRequest),
        invalid_field=error.field if isinstance(error, InvalidRequest) else None,
    )
