"""A web worker's view of the process that runs a model's formatters.

Like `lmi_handlers.engine.client`, it uses plain threads, queues and sockets, which gevent replaces in a gevent worker.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
from pathlib import Path

import msgspec

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    EngineNotReady,
    LMIError,
    RequestFailed,
)
from lmi_handlers.custom_code.formatting.messages import (
    Forget,
    Formatted,
    FormattersReady,
    FormattingFailed,
    FromWorker,
    Known,
    ScriptFormatters,
    ToWorker,
)
from lmi_handlers.engine.status import NOT_FINISHED
from lmi_handlers.workers.channel import Channel, ProtocolError
from lmi_handlers.workers.link import Link
from lmi_handlers.workers.sender import Sender

logger = logging.getLogger(__name__)

_PROCESS = "the process that runs the model's formatters"
_ENDED = f"{_PROCESS} ended while it worked on this request"
NOT_READY = "the model's formatters are being started"


class Calls:
    """The calls of one request, which end at its `deadline`."""

    def __init__(self, client: FormatterClient, deadline: Deadline) -> None:
        self.deadline = deadline
        self.waits = False
        self._client = client
        self._failure: LMIError | None = None
        self._replies: queue.SimpleQueue[Formatted | LMIError] = queue.SimpleQueue()
        self.number = client.begin(self)  # last: from now on, other threads use this

    def send(self, message: FromWorker) -> None:
        """Send a message. Raises `EngineNotReady` or `InvalidRequest` if that is not possible, or what ends the request."""
        if self._failure is not None:
            raise self._failure
        self._client.send(message)

    def receive(self) -> Formatted:
        """Wait for the next reply. Raises the error that ends the request."""
        self.waits = True
        reply = self._replies.get()
        self.waits = False
        if isinstance(reply, LMIError):
            raise reply
        return reply

    def put(self, reply: Formatted | LMIError) -> None:
        """Add a reply. Called by the client's threads."""
        if isinstance(reply, LMIError):
            self._failure = reply
        self._replies.put(reply)

    def watch(self, now: float) -> None:
        """End them if they wait for a reply although the deadline has been reached. Called by one of these threads."""
        if self.waits and (error := self.deadline.reached(now)) is not None:
            self.put(error)

    def close(self, *, forget: bool) -> None:
        """Wait for no replies any more. `forget` tells the process that an answer that has begun will not end."""
        if self._client.end(self) and forget:
            with contextlib.suppress(LMIError):
                self._client.send(Forget(self.number))


class FormatterClient:
    """Connects to the process, reconnects when needed, and multiplexes this worker's requests over the connection.

    Messages that requests send at the same time, as after a step of the engine, go with one write.
    """

    def __init__(self, socket_path: Path) -> None:
        self._ready = threading.Event()
        self._scripts: dict[str, ScriptFormatters] = {}
        self._calls: dict[int, Calls] = {}
        self._numbers = itertools.count(1)
        self._sender: Sender[FromWorker] | None = None
        self._link = Link(socket_path, self._serve, name="formatters", in_flight=self._calls.values())

    def start(self) -> None:
        """Start the threads."""
        self._link.start()

    def close(self) -> None:
        """Disconnect, and end the threads. Requests in flight fail."""
        self._link.close()

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def scripts(self, patience: float) -> dict[str, ScriptFormatters]:
        """Return the formatters by adapter. Raises `EngineNotReady` if they are not known within `patience` seconds."""
        if not self._ready.is_set() and not self._ready.wait(patience):
            raise EngineNotReady(NOT_READY, code="formatters_not_ready")
        return self._scripts

    def begin(self, calls: Calls) -> int:
        """Return a new number. Its replies go to `calls`."""
        number = next(self._numbers)
        self._calls[number] = calls
        return number

    def end(self, calls: Calls) -> bool:
        """Deliver no more replies. Returns False if that was so already."""
        return self._calls.pop(calls.number, None) is not None

    def send(self, message: FromWorker) -> None:
        """Send a message soon. Raises `EngineNotReady` or `InvalidRequest` if that is not possible."""
        sender = self._sender
        if sender is None:
            raise EngineNotReady(NOT_READY, code="formatters_not_ready")
        sender.send(message)

    def end_draining(self) -> None:
        """Fail the requests that are still in flight: the time to finish is over."""
        self._link.fail_all(EngineNotReady(NOT_FINISHED, code="shutting_down"))

    def _serve(self, sock: socket.socket) -> bool:
        """Deliver the replies until the connection ends. Returns False if one cannot be read."""
        channel: Channel[FromWorker, ToWorker] = Channel(sock, msgspec.msgpack.Decoder(ToWorker))
        sender = Sender(channel, _PROCESS)
        try:
            for message in channel.receive():
                if isinstance(message, FormattersReady):
                    self._scripts, self._sender = message.scripts, sender
                    self._ready.set()
                    sender.send(Known(message.change))
                elif (calls := self._calls.get(message.number)) is not None:
                    calls.put(_error_of(message) if isinstance(message, FormattingFailed) else message)
        except ProtocolError:
            logger.exception("the formatters' process sent an invalid message; connecting to it again")
            return False
        finally:
            self._sender = None
            sender.close()
            self._ready.clear()
            self._link.fail_all(RequestFailed(_ENDED))
        return True


def _error_of(message: FormattingFailed) -> RequestFailed:
    return RequestFailed(f"the model's formatter failed: {message.error}", code="formatter_failed")
