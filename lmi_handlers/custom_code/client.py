"""A web worker's view of the pool: whether requests are accepted, and one `Invocation` per request in flight.

Like `lmi_handlers.engine.client`, it uses plain threads and sockets, which gevent replaces in a gevent worker.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    RequestFailed,
)
from lmi_handlers.core.usage import Usage
from lmi_handlers.custom_code.messages import (
    BodyChunk,
    ChangeAdapter,
    End,
    FromWorker,
    Head,
    Invoke,
    Serving,
    ToWorker,
    Watch,
    failure_of,
)
from lmi_handlers.engine.heartbeat import HeartbeatReader
from lmi_handlers.engine.messages import Loading
from lmi_handlers.engine.settings import POOL, heartbeat_path
from lmi_handlers.engine.status import NOT_FINISHED, EngineStatus
from lmi_handlers.workers.channel import LENGTH, Channel, MessageTooLong, ProtocolError, decode, frame, payload_length
from lmi_handlers.workers.link import Link, connect

logger = logging.getLogger(__name__)

_READ_SIZE = 1 << 16
_GONE = "the process that starts the model's code has ended and is being restarted"

_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


class Invocation:
    """The answer to one request. `head` has status and headers; iterating yields the content as it arrives.

    The iterator raises the error with which the request ends: that of the code, `DeadlineExceeded` or
    `ClientDisconnected`. Closing it tells the pool that nobody waits any more. `usage` gets the time that the call took.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, usage: Usage | None = None) -> None:
        self.deadline = deadline
        self._usage = usage
        self._socket = sock
        self._buffer = bytearray()
        self._ended_by: LMIError | None = None
        self.on_close: Callable[[Invocation], object] = lambda _: None

    def begin(self, invoke: Invoke | ChangeAdapter) -> None:
        """Send the request and wait for the head. Raises the error with which the request ends before that."""
        try:
            message = frame(invoke)
        except MessageTooLong as error:
            raise InvalidRequest(f"the request is too long: {error}") from error
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise (self._ended_by or EngineDead(f"{_GONE}; it was reading this request")) from error
        head = self._receive()
        if not isinstance(head, Head):
            raise self._end_of(head)
        self.head = head

    def __iter__(self) -> Iterator[bytes]:
        while True:
            message = self._receive()
            if isinstance(message, BodyChunk):
                yield message.data
                continue
            if isinstance(message, End) and message.error is None:
                return
            raise self._end_of(message)

    def close(self) -> None:
        """Stop waiting for the answer."""
        self.on_close(self)
        self._socket.close()

    def put(self, error: LMIError, /) -> None:
        """Make the reader raise `error` after what has arrived. Any thread may call it."""
        self._ended_by = self._ended_by or error
        with contextlib.suppress(OSError):  # it may have been closed meanwhile
            self._socket.shutdown(socket.SHUT_RDWR)

    def watch(self, now: float) -> None:
        if (error := self.deadline.reached(now)) is not None:
            self.put(error)

    def _receive(self) -> ToWorker:
        """Return the next message. Raises the error that ends the request if there is none."""
        while (message := self._next()) is None:
            try:
                data = self._socket.recv(_READ_SIZE)
            except OSError:
                data = b""
            if not data:
                raise self._ended_by or EngineDead(f"{_GONE}; it worked on this request")
            self._buffer += data
        if isinstance(message, End) and self._usage is not None:
            self._usage.engine_time = message.seconds
        return message

    def _next(self) -> ToWorker | None:
        """Return the first message in the buffer if it is complete."""
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        end = LENGTH.size + payload_length(buffer)
        if len(buffer) < end:
            return None
        message = decode(bytes(buffer[LENGTH.size : end]), _decoder)
        del buffer[:end]
        return message

    @staticmethod
    def _end_of(message: ToWorker) -> LMIError:
        error = failure_of(message) if isinstance(message, End) else None
        return error or RequestFailed(f"the pool sent {type(message).__name__} at the wrong time")  # a bug of ours


class CodeClient:
    """Learns from the pool whether requests are accepted, and opens a connection for each request."""

    def __init__(self, socket_path: Path, stall_timeout: float) -> None:
        self.status = EngineStatus(HeartbeatReader(heartbeat_path(socket_path), title=POOL), stall_timeout)
        self._socket_path = socket_path
        self._in_flight: set[Invocation] = set()
        self._link = Link(socket_path, self._watch, name="pool-watch", in_flight=self._in_flight)

    def start(self) -> None:
        """Start the threads that follow the pool's state and watch over the requests."""
        self._link.start()

    def close(self) -> None:
        """Disconnect from the pool, and end the threads."""
        self._link.close()

    def invoke(self, invoke: Invoke | ChangeAdapter, deadline: Deadline, usage: Usage | None = None) -> Invocation:
        """Send a request, and return it once its answer begins. It ends at the `deadline`. `usage` is for the log.

        Raises `EngineNotReady` if no requests are accepted, and any other error with which the request ends.
        """
        self.status.check()
        try:
            sock = connect(self._socket_path)
        except OSError as error:
            raise EngineNotReady(_GONE) from error
        invocation = Invocation(sock, deadline, usage)
        self._in_flight.add(invocation)
        invocation.on_close = self._in_flight.discard
        try:
            invocation.begin(invoke)
        except BaseException:
            invocation.close()
            raise
        return invocation

    def end_draining(self) -> None:
        """Fail the requests that are still in flight: the time to finish is over."""
        self._link.fail_all(EngineNotReady(NOT_FINISHED, code="shutting_down"))

    def _watch(self, sock: socket.socket) -> bool:
        """Follow the pool's state until the connection ends."""
        serving = False
        channel: Channel[FromWorker, ToWorker] = Channel(sock, _decoder)
        with contextlib.suppress(OSError):
            channel.send(Watch())
        try:
            for message in channel.receive():
                serving = isinstance(message, Serving)
                if isinstance(message, Serving):
                    self.status.ready()
                elif isinstance(message, Loading):
                    self.status.loading(message)
        except ProtocolError:
            logger.exception("the pool sent an invalid message; connecting to it again")
            return False
        finally:
            if serving:  # otherwise its last words say why
                self.status.loading(Loading(_GONE, time.monotonic()))
        return True
