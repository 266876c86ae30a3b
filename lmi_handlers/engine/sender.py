"""Sends a web worker's messages to the engine from a separate thread, so no request waits for the engine to read."""

from __future__ import annotations

import threading
from collections import OrderedDict

from lmi_handlers.core.errors import EngineNotReady, InvalidRequest
from lmi_handlers.engine.channel import Channel, MessageTooLong
from lmi_handlers.engine.messages import Abort, EngineMessage, LoadAdapter, Submit, Synced, UnloadAdapter, WorkerMessage

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Maximum size of the messages that wait for an engine that does not read, without the one being sent."""


class Sender:
    """Sends messages over `channel` in order. Any thread may call it; none is blocked."""

    def __init__(self, channel: Channel[WorkerMessage, EngineMessage], max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._channel = channel
        self._max_bytes = max_bytes
        self._frames: OrderedDict[tuple[int, int | None, bool], bytes] = OrderedDict()
        self._size = 0
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="engine-writer", daemon=True).start()

    def submit(self, submit: Submit | LoadAdapter | UnloadAdapter) -> None:
        """Send a request. Raises `InvalidRequest` if it is too large, `EngineNotReady` if it cannot be queued."""
        try:
            frame = self._channel.frame(submit)
        except MessageTooLong as error:
            raise InvalidRequest(f"the request is too long for the engine: {error}") from error
        with self._changed:
            if self._closed:
                raise EngineNotReady("the connection to the engine has just closed")
            if self._frames and self._size + len(frame) > self._max_bytes:
                raise EngineNotReady(
                    f"the engine does not read its messages: {len(self._frames)} with {self._size} bytes are waiting"
                )
            self._put((submit.number, None, True), frame)

    def abort(self, abort: Abort) -> None:
        """Send an abort. If it is for a whole request that has not been sent yet, drop that request instead."""
        with self._changed:
            if self._closed:
                return
            unsent = None if abort.index is not None else self._frames.pop((abort.number, None, True), None)
            if unsent is not None:
                self._size -= len(unsent)
                return
            self._put((abort.number, abort.index, False), self._channel.frame(abort))

    def confirm(self, synced: Synced) -> None:
        """Send an answer to the engine. Its number is the engine's, and unlike those of requests."""
        with self._changed:
            if not self._closed:
                self._put((-synced.number, None, False), self._channel.frame(synced))

    def close(self) -> None:
        """Drop the waiting messages and end the thread."""
        with self._changed:
            self._closed = True
            self._frames.clear()
            self._size = 0
            self._changed.notify()

    def _put(self, key: tuple[int, int | None, bool], frame: bytes) -> None:
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
        """Take the frames that one write sends: of a burst of requests many, of long ones few.

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


_WRITE_SIZE = 1 << 16
"""Bytes after which no more messages are added to a write."""
