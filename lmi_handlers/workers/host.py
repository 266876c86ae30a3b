"""The other end of web workers' links: a process that accepts them on a Unix socket, and its connection with each."""

from __future__ import annotations

import functools
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from lmi_handlers.workers.channel import Channel, MessageTooLong

Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received", bound=msgspec.Struct)

_ACCEPT_PAUSE = 1.0
_FLUSH_TIMEOUT = 1.0

logger = logging.getLogger(__name__)


def pause() -> None:
    """Log why a web worker cannot be accepted, and wait before the next try."""
    logger.exception("a web worker cannot connect")
    time.sleep(_ACCEPT_PAUSE)


class WorkerConnection(Generic[Sent, Received]):
    """A connected web worker. One thread reads and one writes, so a worker that does not read delays nobody else.

    All messages that wait are sent with one write. A worker that reads nothing for `patience` seconds is disconnected.
    A subclass handles what arrives.
    """

    def __init__(self, channel: Channel[Sent, Received], patience: float) -> None:
        channel.limit_sending(patience)
        self._channel = channel
        self._patience = patience
        self._waiting: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="worker-writer", daemon=True)

    def start(self, gone: Callable[[], object]) -> None:
        """Start the threads. `gone` is called once the worker has disconnected."""
        self._writer.start()
        threading.Thread(target=self._read, args=(gone,), name="worker-reader", daemon=True).start()

    def send(self, message: Sent) -> None:
        """Queue a message. Never blocks, and does nothing if the worker is gone."""
        self._waiting.put(message)

    def finish(self) -> None:
        """Accept no more messages, because the process ends."""
        self._waiting.put(None)

    def flush(self, timeout: float) -> None:
        """Wait until everything queued before `finish` has been written."""
        self._writer.join(timeout)

    def received(self, message: Received) -> None:
        """Handle a message, in the thread that reads. An exception disconnects the worker."""
        raise NotImplementedError

    def disconnected(self) -> None:
        """Handle the end of the connection, in that thread."""

    def joined(self, messages: list[Sent]) -> list[Sent]:
        """Return what is sent for the messages that wait, in the thread that writes."""
        return messages

    def in_place_of(self, message: Sent, error: MessageTooLong) -> list[Sent]:
        """Return what is sent in place of a message that is too long, in the thread that writes. May raise `error`."""
        raise NotImplementedError

    def _write(self) -> None:
        try:
            while True:
                messages, is_last = self._take()
                self._channel.send_frame(b"".join(map(self._frame, self.joined(messages))))
                if is_last:
                    return
        except BlockingIOError:
            extra = {"seconds": self._patience}
            logger.error("a web worker does not read its messages; disconnecting it", extra=extra)
        except OSError:
            pass  # the worker is gone; the reader notices that too
        except Exception:  # whatever a backend puts into its outputs, requests must not hang
            logger.exception("messages cannot be sent to a web worker; disconnecting it")
        self._channel.close()

    def _take(self) -> tuple[list[Sent], bool]:
        """Wait for a message, then return all in order, and whether they are the last ones."""
        messages: list[Sent] = []
        message = self._waiting.get()
        while message is not None:
            messages.append(message)
            if self._waiting.empty():
                return messages, False
            message = self._waiting.get()
        return messages, True

    def _frame(self, message: Sent) -> bytes:
        try:
            return self._channel.frame(message)
        except MessageTooLong as error:
            return b"".join(map(self._frame, self.in_place_of(message, error)))

    def _read(self, gone: Callable[[], object]) -> None:
        try:
            for message in self._channel.receive():
                self.received(message)
        except Exception:  # usually a ProtocolError; in any case the others must learn that the worker is gone
            logger.exception("a web worker sent an invalid message; disconnecting it")
        gone()
        self.disconnected()
        self._waiting.put(None)
        self._channel.close()


Connection = TypeVar("Connection", bound=WorkerConnection[Any, Any])


class Host(Generic[Sent, Connection]):
    """Accepts web workers, and tells them a state when they connect and on every change.

    `connect` makes the connection of each. `refused` is called if one cannot be accepted.
    """

    def __init__(
        self,
        path: Path,
        state: Sent,
        connect: Callable[[socket.socket], Connection],
        *,
        refused: Callable[[], object] = pause,
    ) -> None:
        self._state = state
        self._connect = connect
        self._connections: list[Connection] = []
        self._lock = threading.Lock()
        sockets = accepted(listen(path), refused)
        threading.Thread(target=self._accept, args=(sockets,), name="worker-host", daemon=True).start()

    @property
    def connections(self) -> list[Connection]:
        """The workers that are connected."""
        with self._lock:
            return list(self._connections)

    def announce(self, state: Sent) -> None:
        """Tell every worker, including those that connect later."""
        with self._lock:
            self._state = state
            for connection in self._connections:
                connection.send(state)

    def flush(self) -> None:
        """Send what is queued for the workers. Takes at most a second."""
        deadline = time.monotonic() + _FLUSH_TIMEOUT
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.finish()
        for connection in connections:
            connection.flush(max(0.0, deadline - time.monotonic()))

    def _accept(self, sockets: Iterator[socket.socket]) -> None:
        for sock in sockets:
            with self._lock:
                connection = self._connect(sock)
                connection.send(self._state)
                connection.start(functools.partial(self._forget, connection))
                self._connections.append(connection)  # started, so that `flush` can wait for it

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.remove(connection)


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, in place of one that a dead process has left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.settimeout(None)  # a model's code may have called `socket.setdefaulttimeout`
    listener.bind(str(path))
    listener.listen()
    return listener


def accepted(listener: socket.socket, refused: Callable[[], object] = pause) -> Iterator[socket.socket]:
    """Yield connections, for ever. `refused` is called if one cannot be accepted, within an `except` block."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:  # for example because no file descriptor is left
            refused()
            continue
        sock.settimeout(None)
        yield sock
