"""Sends a web worker's messages to the engine, so that no request waits for the engine to read."""

from __future__ import annotations

from typing import Any

from lmi_handlers.engine.messages import Abort, LoadAdapter, Submit, Synced, UnloadAdapter, WorkerMessage
from lmi_handlers.workers.channel import Channel
from lmi_handlers.workers.sender import MAX_WAITING_BYTES, Sender


class EngineSender(Sender[WorkerMessage]):
    """Sends messages over `channel` in order. Any thread may call it; none is blocked."""

    def __init__(self, channel: Channel[WorkerMessage, Any], max_bytes: int = MAX_WAITING_BYTES) -> None:
        super().__init__(channel, "the engine", max_bytes)

    def submit(self, submit: Submit | LoadAdapter | UnloadAdapter) -> None:
        """Send a request. Raises `InvalidRequest` if it is too large, `EngineNotReady` if it cannot be queued."""
        self.send(submit, (submit.number, None, True))

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
