"""The body of a streamed response: how its records reach the client."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from lmi_handlers.core.errors import ClientDisconnected, LMIError
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.web.client_socket import ClientSocket

if TYPE_CHECKING:
    from lmi_handlers.serving.answer import Listener

_RECORD = re.compile(rb"[^\n]*\n+|[^\n]+")

_LAST_RECORD = 1.0
"""Seconds after its deadline in which a stream may still write its last record."""


class Answering(Protocol):
    """The request that a body answers."""

    environ: dict[str, Any]

    def limit_writes(self, deadline: float, /) -> None:
        """Let writes to the client fail at the monotonic time `deadline`."""

    def log(self, status: int, error: LMIError | None = None) -> None:
        """Count and log the response, once it is over."""


class Closing(Protocol):
    """An answer that is streamed until the monotonic time `deadline`. `failure` is what has ended it early."""

    deadline: float
    failure: LMIError | None

    def close(self) -> None:
        """Stop generating it."""


class Telling(Protocol):
    """An answer that tells a reader when there is more of it."""

    def tell(self, reader: Listener) -> bool:
        """Tell `reader` from now on. Returns False if there will be nothing that could be read without waiting."""

    def ready(self) -> bool:
        """Tell whether iterating goes on at once: more has arrived, or nothing more will."""

    def is_over(self) -> bool:
        """Tell whether nothing more will arrive, and the rest is made without waiting."""


class StreamBody:
    """A streamed response body: `first`, then the chunks of `rest`.

    The server closes it at its end or when the client has left. That aborts the generation and logs the request.

    The greenlet of a request costs as much to wake as a token to write. So between two chunks it sleeps, and whoever
    brings the next one takes it from `rest` and writes it in the greenlet's place (`advance`), unless that may take long.
    Then the greenlet goes on (`resume`): for large outputs, at the end, or for a client that reads slowly. Meanwhile, the
    outputs that arrive stay in the engine's client.
    """

    def __init__(
        self,
        exchange: Answering,
        first: bytes,
        rest: Iterator[bytes],
        answer: Closing | None = None,
        status: int = 200,
        *,
        by_record: bool = False,
        telling: Telling | None = None,
    ) -> None:
        """With `by_record`, each record is a part of its own: some of SageMaker's clients take each part for a record.

        `telling` is the answer whose chunks are `rest`, if it can tell when there is one.
        """
        self._exchange = exchange
        self._status = status
        self._first = first
        self._rest = rest
        self._answer = answer
        self._by_record = by_record
        self._telling = telling
        self._socket: ClientSocket | None = None
        self._in_turn = True
        self._due = threading.Event()
        self._raised: BaseException | None = None
        self._failure: LMIError | None = ClientDisconnected()

    def share_turns(self) -> None:
        """Let whoever brings a chunk write it. Call this in a gevent worker that sends this body as it is."""
        sock = self._exchange.environ.get("gunicorn.socket")
        if isinstance(sock, ClientSocket) and sock.in_request:  # not over HTTP/2
            self._socket = sock

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.suppress(ClientDisconnected):  # from a batch body; the client has gone
            self._limit_writes()
            sock, telling = self._socket, self._telling
            if sock is not None and telling is not None and telling.is_over():
                yield b""  # the head, which is held
                for chunk in (self._first, *self._rest):
                    self._write_last(sock, chunk)
                self._failure = None
                return
            yield from self._parts(self._first) or [b""]
            give_way()  # in a burst, the first bytes of all answers go before the rest of any
            if sock is not None and telling is not None and telling.tell(self):
                self._share(sock, telling)
            else:
                for chunk in self._rest:
                    for part in self._parts(chunk):
                        self._limit_writes()
                        yield part
            self._failure = None

    def advance(self) -> None:
        """Write the next chunk, unless the greenlet is at work or has to be. Raises nothing: the greenlet does."""
        if self._in_turn or self._due.is_set() or self._socket is None:
            return
        self._in_turn = True
        try:
            complete = self._write(self._socket, next(self._rest, b""))
        except BaseException as error:  # noqa: BLE001  whoever brings the chunks of all requests must not end for this one
            self._raised, complete = error, False
        self._in_turn = False
        if not complete:
            self._due.set()

    def resume(self) -> None:
        """Wake the greenlet, or let it go on when it would sleep."""
        self._due.set()

    def close(self) -> None:
        """Stop and log. The WSGI server calls this exactly once."""
        if self._answer is not None:
            self._answer.close()
            self._failure = self._answer.failure
            if self._socket is not None and self._socket.has_failed:  # the end of a complete answer
                self._failure = self._failure or ClientDisconnected()
        elif hasattr(self._rest, "close"):
            self._rest.close()
        self._exchange.log(self._status, self._failure)

    def _share(self, sock: ClientSocket, answer: Telling) -> None:
        """Write what may take long, and let others write the rest."""
        for chunk in self._rest:
            if answer.is_over():
                self._write_last(sock, chunk)
                continue
            self._write(sock, chunk)
            sock.flush()
            if not answer.ready():
                self._await_turn()
                sock.flush()

    def _await_turn(self) -> None:
        self._in_turn = False
        self._due.wait()
        while self._in_turn:  # a formatter waits although it does not say so
            give_way()
        self._in_turn = True
        self._due.clear()
        if self._raised is not None:
            try:
                raise self._raised
            finally:
                self._raised = None  # its traceback refers to this object

    def _write(self, sock: ClientSocket, chunk: bytes, *, last: bool = False) -> bool:
        """Write without waiting. Returns False if something is left for `flush`."""
        return not chunk or sock.write_chunks(self._parts(chunk), last=last)

    def _write_last(self, sock: ClientSocket, chunk: bytes) -> None:
        if not self._write(sock, chunk, last=True):
            sock.flush()

    def _parts(self, chunk: bytes) -> list[bytes]:
        if self._by_record:
            return _RECORD.findall(chunk)
        return [chunk] if chunk else []

    def _limit_writes(self) -> None:
        if self._answer is not None:
            self._exchange.limit_writes(self._answer.deadline + _LAST_RECORD)
