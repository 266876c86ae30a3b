"""A process that runs a model's own code: one call at a time, for the pool that has started it."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading

import msgspec

from lmi_handlers.custom_code.handler import Handler, load_error
from lmi_handlers.custom_code.messages import Abort, Batch, End, FromCode, FromPool, Head, Load, Loaded
from lmi_handlers.engine.channel import Channel
from lmi_handlers.engine.parent import end_with_parent
from lmi_handlers.log import configure_logging


class _Connection:
    """The connection to the pool. A thread reads it, so that an `Abort` arrives during a call.

    `aborted` is the number of the latest batch that was aborted.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._channel: Channel[FromCode, FromPool] = Channel(sock, msgspec.msgpack.Decoder(FromPool))
        self._received: queue.SimpleQueue[Load | Batch] = queue.SimpleQueue()
        self.aborted = 0
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self) -> Load | Batch:
        """Wait for the next message."""
        return self._received.get()

    def send(self, *messages: FromCode) -> None:
        """Send messages with one write."""
        self._channel.send_frame(b"".join([self._channel.frame(message) for message in messages]))

    def _read(self) -> None:
        for message in self._channel.receive():
            if isinstance(message, Abort):
                self.aborted = message.number
            else:
                self._received.put(message)
        os._exit(1)  # the pool has gone


def serve(connection: _Connection) -> int:
    """Load the code and answer requests until the pool is gone. Returns 1 if the code cannot be used."""
    load = connection.receive()
    assert isinstance(load, Load)  # noqa: S101  the protocol
    try:
        handler = Handler(load)
    except BaseException as error:  # noqa: BLE001  sys.exit too: the pool must know where
        connection.send(load_error(error, load.code))
        return 1
    connection.send(Loaded())
    while True:
        batch = connection.receive()
        assert isinstance(batch, Batch)  # noqa: S101  the protocol
        _answer(handler, batch, connection)


def _answer(handler: Handler, batch: Batch, connection: _Connection) -> None:
    """Send a whole answer with one write, and each chunk of a stream with its own."""
    number, pid = batch.number, os.getpid()
    held: list[FromCode] = []
    streams = False
    for message in handler.answer(batch, lambda: connection.aborted == number):
        if os.getpid() != pid:  # the code has forked, and this is not the process that the pool talks to
            os._exit(0)
        held.append(message)
        if isinstance(message, Head):
            streams = message.streams
        elif streams or isinstance(message, End):
            connection.send(*held)
            held = []


def main() -> int:
    """Entry point of `python -m lmi_handlers.custom_code.child <descriptor of the connection>`."""
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), sys.stdin.fileno())  # what the parent holds open is not input
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    return serve(_Connection(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as end:  # of the code
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the code do not keep the process
