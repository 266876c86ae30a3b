"""The engine's end of the connections to web workers."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.engine.loop import Disconnected, Inbox
from lmi_handlers.engine.messages import Abort, EngineMessage, Failed, Loading, Outputs, Ready, Sync, Synced, engine_end
from lmi_handlers.engine.outbox import Outbox
from lmi_handlers.workers.channel import MessageTooLong

_ACCEPT_PAUSE = 1.0
_FLUSH_TIMEOUT = 1.0

logger = logging.getLogger(__name__)


class WorkerConnection:
    """One connected web worker. A separate thread sends its messages, so a slow worker delays nobody else.

    `sending_since` is the monotonic time at which the current message was started, None between messages.
    """

    def __init__(self, sock: socket.socket, inbox: Inbox, on_gone: Callable[[WorkerConnection], None]) -> None:
        self._channel = engine_end(sock)
        self._inbox = inbox
        self._on_gone = on_gone
        self._outbox = Outbox()
        self.sending_since: float | None = None
        self._numbers = itertools.count(1)
        self._syncs: dict[int, threading.Event] = {}
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: EngineMessage) -> None:
        """Queue a message. Never blocks, and does nothing if the worker is gone."""
        self._outbox.put(message)

    def sync(self) -> threading.Event:
        """Return an event that is set once the worker has handled everything sent so far, or is gone."""
        number, handled = next(self._numbers), threading.Event()
        self._syncs[number] = handled
        self.send(Sync(number))
        return handled

    def finish(self) -> None:
        """Accept no more messages, because the process ends."""
        self._outbox.put(None)

    def flush(self, timeout: float) -> None:
        """Wait until everything queued before `finish` has been written."""
        self._writer.join(timeout)

    def close(self) -> None:
        """Close the connection. The reader tells the loop."""
        self._channel.close()

    def _write(self) -> None:
        try:
            while True:
                for message in self._outbox.take():
                    if message is None:
                        return
                    self.sending_since = time.monotonic()
                    self._send(message)
                    self.sending_since = None
        except OSError:
            pass  # the worker is gone; the reader notices that too
        except Exception:  # whatever a backend puts into its outputs, requests must not hang
            logger.exception("messages cannot be sent to a web worker; disconnecting it")
        self._channel.close()

    def _send(self, message: EngineMessage) -> None:
        """Send a message, or its outputs one by one if it is too long. If an output is too long, its request fails."""
        try:
            self._channel.send(message)
        except MessageTooLong as error:
            if not isinstance(message, Outputs):
                raise
            if len(message.outputs) > 1:
                for output in message.outputs:
                    self._send(Outputs([output]))
            else:
                number = message.outputs[0].number
                self._channel.send(Failed(number, "RequestFailed", f"its output is too long to be sent: {error}"))
                self._inbox.put((self, Abort(number)))

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                if isinstance(message, Synced):
                    self._syncs.pop(message.number).set()
                else:
                    self._inbox.put((self, message))
        except Exception:  # usually a ProtocolError; in any case the loop must learn that the worker is gone
            logger.exception("a web worker sent an invalid message; disconnecting it")
        self._inbox.put((self, Disconnected()))
        self._on_gone(self)  # from now on, nobody calls `sync`
        for handled in self._syncs.values():
            handled.set()
        self._outbox.put(None)
        self._channel.close()


class WorkerServer:
    """Accepts web workers and tells them the state of the engine, when they connect and on every change."""

    def __init__(self, path: Path, inbox: Inbox) -> None:
        self._inbox = inbox
        self._state: EngineMessage = Loading(LoadPhase.STARTING.value, time.monotonic())
        self._connections: list[WorkerConnection] = []
        self._lock = threading.Lock()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def announce(self, state: Loading | Ready) -> None:
        """Tell every worker, including those that connect later."""
        with self._lock:
            self._state = state
            for connection in self._connections:
                connection.send(state)

    def settle(self, limit: float) -> None:
        """Wait until all workers have handled what was announced, for at most `limit` seconds.

        A worker that ends is not waited for. One that hangs may handle it later.
        """
        deadline = time.monotonic() + limit
        with self._lock:
            all_handled = [connection.sync() for connection in self._connections]
        for handled in all_handled:
            handled.wait(max(0.0, deadline - time.monotonic()))

    def hang_up_on_stuck(self, limit: float) -> None:
        """Disconnect each worker that has left a message unread for `limit` seconds.

        Its requests occupy places in the batch that others need.
        """
        with self._lock:
            for connection in self._connections:
                since = connection.sending_since
                if since is not None and time.monotonic() - since > limit:
                    logger.error("a web worker does not read its messages; disconnecting it", extra={"seconds": limit})
                    connection.close()

    def flush(self) -> None:
        """Send what is queued for the workers. Takes at most a second."""
        deadline = time.monotonic() + _FLUSH_TIMEOUT
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.finish()
        for connection in connections:
            connection.flush(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # for example because no file descriptor is left
                logger.exception("a web worker cannot connect")
                time.sleep(_ACCEPT_PAUSE)
                continue
            with self._lock:
                connection = WorkerConnection(sock, self._inbox, self._forget)
                connection.send(self._state)
                self._connections.append(connection)

    def _forget(self, connection: WorkerConnection) -> None:
        with self._lock:
            self._connections.remove(connection)
