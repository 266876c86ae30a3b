"""The engine's end of the connections to web workers."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from pathlib import Path

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.engine.loop import Disconnected, Inbox
from lmi_handlers.engine.messages import (
    Abort,
    EngineMessage,
    Failed,
    Loading,
    Outputs,
    Sync,
    Synced,
    WorkerMessage,
    engine_end,
)
from lmi_handlers.engine.outbox import join_runs
from lmi_handlers.workers.channel import MessageTooLong
from lmi_handlers.workers.host import Host, WorkerConnection

_UNREAD = 1 << 14
"""Maximum bytes that wait in the kernel for a web worker: a step of some hundred sequences. The kernel would hold a dozen
steps, which the worker would have to render and send one by one; only what waits here is joined."""


class EngineConnection(WorkerConnection[EngineMessage, WorkerMessage]):
    """Puts what a web worker sends into the loop's inbox, and sends it one message per step, or less if it falls behind."""

    def __init__(self, sock: socket.socket, inbox: Inbox, patience: float) -> None:
        channel = engine_end(sock)
        channel.limit_unread(_UNREAD)
        super().__init__(channel, patience)
        self._inbox = inbox
        self._numbers = itertools.count(1)
        self._syncs: dict[int, threading.Event] = {}

    def sync(self) -> threading.Event:
        """Return an event that is set once the worker has handled everything sent so far, or is gone."""
        number, handled = next(self._numbers), threading.Event()
        self._syncs[number] = handled
        self.send(Sync(number))
        return handled

    def received(self, message: WorkerMessage) -> None:
        if isinstance(message, Synced):
            self._syncs.pop(message.number).set()
        else:
            self._inbox.put((self, message))

    def disconnected(self) -> None:
        self._inbox.put((self, Disconnected()))
        for handled in self._syncs.values():  # nobody calls `sync` any more
            handled.set()

    def joined(self, messages: list[EngineMessage]) -> list[EngineMessage]:
        return join_runs(messages)

    def in_place_of(self, message: EngineMessage, error: MessageTooLong) -> list[EngineMessage]:
        """Return the outputs one by one. If a single one is too long, its request fails."""
        if not isinstance(message, Outputs):
            raise error
        if len(message.outputs) > 1:
            return [Outputs([output]) for output in message.outputs]
        number = message.outputs[0].number
        self._inbox.put((self, Abort(number)))
        return [Failed(number, "RequestFailed", f"its output is too long to be sent: {error}")]


class WorkerServer(Host[EngineMessage, EngineConnection]):
    """Accepts web workers and tells them the state of the engine.

    A worker that does not read for `patience` seconds is disconnected: its requests occupy places in the batch that
    others need.
    """

    def __init__(self, path: Path, inbox: Inbox, patience: float = 60.0) -> None:
        self.patience = patience
        state = Loading(LoadPhase.STARTING.value, time.monotonic())
        super().__init__(path, state, lambda sock: EngineConnection(sock, inbox, self.patience))

    def settle(self, limit: float) -> None:
        """Wait until all workers have handled what was announced, for at most `limit` seconds.

        A worker that ends is not waited for. One that hangs may handle it later.
        """
        deadline = time.monotonic() + limit
        with self._lock:
            all_handled = [connection.sync() for connection in self._connections]
        for handled in all_handled:
            handled.wait(max(0.0, deadline - time.monotonic()))
