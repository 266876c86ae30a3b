"""The connection of a process that runs a model's own code to the pool."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable

import msgspec

from lmi_handlers.custom_code.messages import AbortBatch, Batch, FromCode, FromPool, Pause, Resume
from lmi_handlers.workers.channel import Channel


class Connection:
    """Sends from one thread and receives in another, so that messages arrive during a call.

    It is made before the code is imported, which may replace sockets, threads and locks (as gevent does).
    """

    def __init__(self, sock: socket.socket) -> None:
        self._channel: Channel[FromCode, FromPool] = Channel(sock, msgspec.msgpack.Decoder(FromPool))
        self._write = sock.sendall
        self._pid = os.getpid()
        self._received: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._take: Callable[[FromPool], object] = self._keep
        self._aborted = 0
        self._paused: set[int] = set()
        self._resumed: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self) -> Batch:
        """Wait for the next batch."""
        return self._received.get()

    def is_aborted(self, number: int) -> bool:
        """Tell whether the batch was aborted."""
        return self._aborted >= number

    def wait_until_read(self, number: int) -> None:
        """Wait while the stream that answers the request is paused."""
        while number in self._paused:
            self._resumed.get()

    def listen(self, take: Callable[[FromPool], object]) -> None:
        """Give each message to `take`, which is called in a thread. Call this before sending `Loaded`."""
        self._take = take

    def send(self, *messages: FromCode) -> None:
        """Send messages with one write."""
        if os.getpid() != self._pid:  # the code has forked, and this is not the process that the pool talks to
            os._exit(0)
        self._write(b"".join([self._channel.frame(message) for message in messages]))

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                self._take(message)
        finally:
            os._exit(1)  # the pool has gone

    def _keep(self, message: FromPool) -> None:
        match message:
            case Batch():
                self._received.put(message)
            case Pause(number):
                self._paused.add(number)
            case AbortBatch(number) | Resume(number):
                self._aborted = number if isinstance(message, AbortBatch) else self._aborted
                self._paused.discard(number)
                self._resumed.put(None)
