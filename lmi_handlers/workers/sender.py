"""Sends messages from a separate thread, so that nobody waits for the other end to read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec

from lmi_handlers.core.errors import EngineNotReady, InvalidRequest
from lmi_handlers.workers.channel import Channel, MessageTooLong

Sent = TypeVar("Sent", bound=msgspec.Struct)

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Maximum size of the messages that wait for a process that does not read, without the one being sent."""

_WRITE_SIZE = 1 << 16
"""Bytes after which no more messages are added to a write."""


class Sender(Generic[Sent]):
    """Sends messages over `channel` in order. Any thread may call it; none is blocked.

    `receiver` is the other end's name in errors.
    """

    def __init__(self, channel: Channel[Sent, Any], receiver: str, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._channel = channel
        self._receiver = receiver
        self._max_bytes = max_bytes
        self._frames: OrderedDict[Hashable, bytes] = OrderedDict()
        self._size = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())  # no thread takes it twice, which costs gevent 20 calls
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    def send(self, message: Sent, key: Hashable | None = None) -> None:
        """Send a message. Raises `InvalidRequest` if it is too large, `EngineNotReady` if it cannot be queued.

        A subclass may find it by its `key` as long as it waits.
        """
        try:
            frame = self._channel.frame(message)
        except MessageTooLong as error:
            raise InvalidRequest(f"the request is too long for {self._receiver}: {error}") from error
        with self._changed:
            if self._closed:
                raise EngineNotReady(f"the connection to {self._receiver} has just closed")
            if self._frames and self._size + len(frame) > self._max_bytes:
                raise EngineNotReady(
                    f"{self._receiver} does not read its messages: "
                    f"{len(self._frames)} with {self._size} bytes are waiting",
                    code="messages_not_read",
                )
            self._put(object() if key is None else key, frame)

    def close(self) -> None:
        """Drop the waiting messages and end the thread."""
        with self._changed:
            self._closed = True
            self._frames.clear()
            self._size = 0
            self._changed.notify()

    def _put(self, key: Hashable, frame: bytes) -> None:
        self._size += len(frame) - len(self._frames.get(key, b""))
        self._frames[key] = frame
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._frames and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                frames = self._next_frames()
            try:
                self._channel.send_frame(frames)
            except OSError:
                self._channel.close()  # the reader notices and fails the requests
                return

    def _next_frames(self) -> bytes:
        """Take the frames for one write: many if they are short, few if they are long.

        What has been taken can no longer be dropped by an abort.
        """
        taken: list[bytes] = []
        size = 0
        while self._frames and size < _WRITE_SIZE:
            _, frame = self._frames.popitem(last=False)
            taken.append(frame)
            size += len(frame)
        self._size -= size
        return b"".join(taken)
