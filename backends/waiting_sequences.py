"""Sequences that wait for their grammar or media before the backend hands them to its engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lmi_handlers.core.errors import InvalidRequest, QueueFull, RequestError, RequestFailed
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest

logger = logging.getLogger(__name__)

_WAIT = 0.02

Compiled = TypeVar("Compiled")
Media = TypeVar("Media")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Compiled, Media]):
    """A sequence that can start, with the grammar and media it waited for."""

    request: TokenRequest
    grammar: Compiled | None
    media: Media | None


class WaitingSequences(Generic[Compiled, Media]):
    """The waiting sequences by request id, in order of arrival. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[TokenRequest, Future[Compiled] | None, Future[Media] | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: TokenRequest, grammar: Future[Compiled] | None, media: Future[Media] | None) -> None:
        """Add a sequence that can start once its grammar and its media are ready."""
        self._entries[request.request_id] = request, grammar, media

    def discard(self, request_id: str) -> bool:
        """Drop a sequence. Returns False if the id is unknown."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return False
        for future in entry[1:]:
            if future is not None:
                future.cancel()
        return True

    def collect(self) -> tuple[list[Prepared[Compiled, Media]], list[TokenOutput]]:
        """Remove finished entries. Returns the sequences that can start and an error output for each failed one."""
        ready: list[Prepared[Compiled, Media]] = []
        refused = []
        for request, grammar, media in list(self._entries.values()):
            if not all(future is None or future.done() for future in (grammar, media)):
                continue
            del self._entries[request.request_id]
            try:
                ready.append(Prepared(request, _result(grammar), _result(media)))
            except RequestError as error:
                refused.append(refusal(request.request_id, error))
            except Exception as error:
                logger.exception("a request could not be prepared")
                failure = RequestFailed(
                    f"it could not be prepared ({type(error).__name__}); the server's log says more"
                )
                refused.append(refusal(request.request_id, failure))
        return ready, refused

    def wait(self, others: Sequence[Future[Any]] = ()) -> None:
        """Wait up to 20 ms for the next result, or for one of `others`. For a backend that has nothing else to do."""
        pending: list[Future[Any]] = [
            *others,
            *(
                future
                for entry in self._entries.values()
                for future in entry[1:]
                if future is not None and not future.done()
            ),
        ]
        wait(pending, _WAIT, FIRST_COMPLETED)


def _result(future: Future[Result] | None) -> Result | None:
    return None if future is None else future.result()


def refusal(request_id: str, error: RequestError) -> TokenOutput:
    """Return the last output of a sequence that cannot start, or cannot go on."""
    return TokenOutput(
        request_id=request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=error.message if isinstance(error, InvalidRequest) else str(error),
        invalid_request=isinstance(error, InvalidRequest),
        invalid_field=error.field if isinstance(error, InvalidRequest) else None,
        overloaded=isinstance(error, QueueFull),
    )
