"""Connections between a web worker and the engine, as pairs of channels."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from lmi_handlers.engine.messages import (
    EngineMessage,
    WorkerMessage,
    engine_end,
    worker_end,
)
from lmi_handlers.workers.channel import Channel

WorkerEnd = Channel[WorkerMessage, EngineMessage]
EngineEnd = Channel[EngineMessage, WorkerMessage]


@contextlib.contextmanager
def accepted(listener: socket.socket) -> Iterator[tuple[socket.socket, EngineEnd]]:
    """Accepts the next connection: the engine's end of it."""
    sock, _ = listener.accept()
    channel = engine_end(sock)
    try:
        yield sock, channel
    finally:
        channel.close()
        channel._reader.close()


@contextlib.contextmanager
def connected() -> Iterator[tuple[WorkerEnd, EngineEnd]]:
    """Both ends of one connection."""
    one, other = socket.socketpair()
    worker, engine = worker_end(one), engine_end(other)
    try:
        yield worker, engine
    finally:
        for end in (worker, engine):
            end.close()
            end._reader.close()


@contextlib.contextmanager
def worker_connection(path: Path) -> Iterator[tuple[socket.socket, WorkerEnd]]:
    """A web worker's connection to the engine that listens on `path`."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        channel = worker_end(sock)
        try:
            yield sock, channel
        finally:
            channel._reader.close()
