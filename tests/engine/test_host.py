"""A process that web workers connect to: what one of them does concerns nobody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import pytest
from facts import says
from waiting import wait_until

from lmi_handlers.workers.channel import Channel
from lmi_handlers.workers.host import Host, WorkerConnection, accepted, listen
from lmi_handlers.workers.link import connect


class Note(msgspec.Struct, array_like=True, tag=True):
    """A message, in either direction."""

    number: int
    text: str = ""


class Echo(WorkerConnection[Note, Note]):
    """Sends everything back."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(Channel(sock, msgspec.msgpack.Decoder(Note)), patience=0.5)

    def received(self, message: Note) -> None:
        self.send(message)


@contextlib.contextmanager
def worker(path: Path) -> Iterator[tuple[Channel[Note, Note], Generator[Note]]]:
    """A web worker, and what it receives."""
    channel: Channel[Note, Note] = Channel(connect(path), msgspec.msgpack.Decoder(Note))
    messages = channel.receive()
    yield channel, messages
    channel.close()
    messages.close()


def test_a_worker_that_does_not_read_delays_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(tmp_path / "host.sock", Note(0), Echo)
    with worker(tmp_path / "host.sock") as (stuck, _), worker(tmp_path / "host.sock") as (channel, messages):
        assert next(messages) == Note(0)
        with contextlib.suppress(OSError):  # on a slow machine, it may be disconnected before it has sent all
            for number in range(40):
                stuck.send(Note(number, "x" * 100_000))  # together more than a socket buffers
        for number in range(100):
            channel.send(Note(number))
            assert next(messages) == Note(number)
        wait_until(lambda: len(host._connections) == 1)
        assert says(caplog.text, "web worker not read disconnecting")
        host.announce(Note(1, "all"))
        assert next(messages) == Note(1, "all")


def test_a_default_timeout_that_a_models_code_sets_does_not_apply(tmp_path: Path) -> None:
    socket.setdefaulttimeout(60)
    try:
        path = tmp_path / "host.sock"
        with listen(path) as listener, connect(path), next(accepted(listener)) as sock:
            assert (listener.gettimeout(), sock.gettimeout()) == (None, None)
    finally:
        socket.setdefaulttimeout(None)
