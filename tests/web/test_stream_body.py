"""The body of a stream, whose chunks are written by whoever brings them."""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from lmi_handlers.core.errors import ClientDisconnected, LMIError
from lmi_handlers.models.held_model import HeldModel
from lmi_handlers.models.registry import RegisteredModel, users_file
from lmi_handlers.serving.answer import Listener
from lmi_handlers.web.client_socket import ClientSocket, Limits
from lmi_handlers.web.stream_body import StreamBody

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Chunks:
    """Chunks that arrive one by one. An error is raised where the next chunk is made."""

    def __init__(self) -> None:
        self.is_awaited = threading.Event()
        self.has_all = False
        self._queue: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._reader: Listener | None = None

    def __iter__(self) -> Iterator[bytes]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def tell(self, reader: Listener) -> bool:
        self._reader = reader
        self._queue.put(b"second")
        return True

    def ready(self) -> bool:
        if self._queue.empty():
            self.is_awaited.set()
            return False
        return True

    def is_over(self) -> bool:
        return self.has_all

    def put(self, item: bytes | None) -> None:
        self._queue.put(item)

    def bring(self, item: bytes | BaseException) -> None:
        """Return once the item has been taken. Another thread may just go to sleep."""
        assert self._reader is not None
        self._queue.put(item)
        while not self._queue.empty():
            self._reader.advance()
            time.sleep(0)

    def leave(self, item: bytes) -> None:
        """The reader's thread is at work, and takes the item itself."""
        assert self._reader is not None
        self._queue.put(item)
        self._reader.advance()

    def end(self) -> None:
        assert self._reader is not None
        self._queue.put(None)
        self._reader.resume()


class Request:
    """Notes how often it is logged, and with what."""

    def __init__(self, sock: ClientSocket) -> None:
        self.environ: dict[str, Any] = {"gunicorn.socket": sock}
        self.logged: list[LMIError | None] = []

    def limit_writes(self, deadline: float, /) -> None:
        """The chunks here have no deadline."""

    def log(self, status: int, error: LMIError | None = None) -> None:
        assert status == 200
        self.logged.append(error)


class Serving:
    """Sends a body as gunicorn does, in a thread. `raised` is what has ended it early."""

    def __init__(self, sock: ClientSocket, chunks: Chunks) -> None:
        self.raised: BaseException | None = None
        self.request = Request(sock)
        self._sock = sock
        self._body = StreamBody(self.request, b"first", iter(chunks), telling=chunks)
        self._body.share_turns()
        self.thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        self._sock.sendall(HEAD)
        try:
            for part in filter(None, self._body):
                self._sock.sendall(b"%X\r\n%b\r\n" % (len(part), part))
            self._sock.sendall(b"0\r\n\r\n")
        except BaseException as error:  # noqa: BLE001  compared by the tests
            self.raised = error
        finally:
            self._body.close()


@pytest.fixture
def chunks() -> Chunks:
    return Chunks()


@pytest.fixture
def client_and_serving(chunks: Chunks) -> Iterator[tuple[socket.socket, Serving]]:
    """A client, and its stream, which has been sent up to its second chunk."""
    server, client = socket.socketpair()
    with server, client:
        client.settimeout(60)
        sock = ClientSocket(server, Limits(client_timeout=20, keepalive=20), {})
        sock.begin_request()
        serving = Serving(sock, chunks)
        serving.thread.start()
        try:
            assert chunks.is_awaited.wait(60)
            yield client, serving
        finally:
            chunks.end()
            serving.thread.join(60)


@pytest.mark.parametrize("by_record", [False, True])
def test_an_answer_that_is_over_is_sent_with_its_end(chunks: Chunks, by_record: bool) -> None:
    """In one write: a short answer costs as much to write as a long one."""
    server, client = socket.socketpair()
    with server, client:
        sock = ClientSocket(server, Limits(client_timeout=20, keepalive=20), {})
        sock.begin_request()
        chunks.has_all = True
        chunks.put(b"two\nthree")
        chunks.put(None)
        request = Request(sock)
        body = StreamBody(request, b"one\n", iter(chunks), by_record=by_record, telling=chunks)
        body.share_turns()
        sock.hold_next()
        for part in body:
            assert part == b""
            sock.sendall(HEAD)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        sock.sendall(b"0\r\n\r\n")
        rest = b"4\r\ntwo\n\r\n5\r\nthree\r\n" if by_record else b"9\r\ntwo\nthree\r\n"
        assert client.recv(1 << 16) == HEAD + b"4\r\none\n\r\n" + rest + b"0\r\n\r\n"
        body.close()
        assert request.logged == [None]


class Ended:
    """An answer that was generated to its end."""

    deadline = math.inf
    failure: LMIError | None = None

    def close(self) -> None:
        """It holds nothing."""


def test_a_client_that_does_not_take_the_end_is_logged(chunks: Chunks) -> None:
    server, client = socket.socketpair()
    with server:
        sock = ClientSocket(server, Limits(client_timeout=20, keepalive=20), {})
        sock.begin_request()
        chunks.has_all = True
        chunks.put(None)
        request = Request(sock)
        body = StreamBody(request, b"one", iter(chunks), Ended(), telling=chunks)
        body.share_turns()
        sock.hold_next()
        for _ in body:
            sock.sendall(HEAD)
        client.close()
        with pytest.raises(BrokenPipeError):
            sock.sendall(b"0\r\n\r\n")
        body.close()
        assert isinstance(request.logged[0], ClientDisconnected)


def test_the_last_chunk_is_sent_with_the_end(chunks: Chunks, client_and_serving: tuple[socket.socket, Serving]) -> None:
    client, serving = client_and_serving
    received(client, b"second\r\n")
    chunks.has_all = True
    chunks.put(b"third")
    chunks.end()
    serving.thread.join(60)
    assert client.recv(1 << 16) == b"5\r\nthird\r\n0\r\n\r\n"
    assert serving.request.logged == [None]


def received(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end) and (piece := client.recv(1 << 16)):
        data += piece
    return data


def test_whoever_brings_a_chunk_writes_it(chunks: Chunks, client_and_serving: tuple[socket.socket, Serving]) -> None:
    client, serving = client_and_serving
    chunks.bring(b"third")
    body = b"5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n"
    assert received(client, b"third\r\n") == HEAD + body
    chunks.end()
    assert received(client, b"0\r\n\r\n") == b"0\r\n\r\n"
    serving.thread.join(60)
    assert (serving.raised, serving.request.logged) == (None, [None])


class OneOfSeveral:
    """The application of a model, which answers every request with `body`."""

    model: Any = None

    def __init__(self, body: StreamBody) -> None:
        self._body = body

    def __call__(self, environ: dict[str, Any], start_response: Any) -> StreamBody:
        return self._body

    def use_threads(self, run_beside: Any) -> None:
        """It has no long work."""


def test_an_answer_of_one_of_several_models_is_written_like_any_other(
    chunks: Chunks, client_and_serving: tuple[socket.socket, Serving], tmp_path: Path
) -> None:
    """What counts the model's requests passes on that others may write."""
    _, serving = client_and_serving
    users_file(tmp_path).touch()
    body = StreamBody(serving.request, b"first", iter(chunks), telling=chunks)
    answer: Any = HeldModel(RegisteredModel(name="m", url="m"), tmp_path, OneOfSeveral(body)).answer(
        {"REQUEST_METHOD": "POST"}, None
    )
    assert hasattr(type(answer), "share_turns"), "the worker asks for it"
    answer.share_turns()
    assert body._socket is not None


@pytest.mark.parametrize("kind", [SystemExit, RuntimeError, MemoryError])
def test_an_error_ends_only_its_own_request(
    kind: type[BaseException], chunks: Chunks, client_and_serving: tuple[socket.socket, Serving]
) -> None:
    """Not whoever brings the chunks of all requests. A formatter may raise anything, also for its error record."""
    _, serving = client_and_serving
    chunks.bring(kind("a formatter"))
    serving.thread.join(60)
    assert isinstance(serving.raised, kind)
    assert len(serving.request.logged) == 1


def test_what_a_slow_client_does_not_take_is_sent_in_order(
    chunks: Chunks, client_and_serving: tuple[socket.socket, Serving]
) -> None:
    """Also if a part ends within a character."""
    client, serving = client_and_serving
    received(client, b"second\r\n")
    large = "ü".encode() * (1 << 22)
    chunks.bring(large)
    chunks.leave(b"after")
    chunks.end()
    expected = b"%X\r\n%b\r\n5\r\nafter\r\n0\r\n\r\n" % (len(large), large)
    assert received(client, b"after\r\n0\r\n\r\n") == expected
    serving.thread.join(60)
    assert serving.request.logged == [None]


def test_a_client_that_has_left_ends_only_its_own_request(
    chunks: Chunks, client_and_serving: tuple[socket.socket, Serving]
) -> None:
    client, serving = client_and_serving
    client.close()
    chunks.bring(b"third")
    wait_until(lambda: bool(serving.request.logged))
    assert isinstance(serving.raised, OSError)
    assert len(serving.request.logged) == 1


class CountingSocket(socket.socket):
    """Counts what is sent with one call."""

    sends = 0

    def send(self, *arguments: Any) -> int:
        self.sends += 1
        return super().send(*arguments)


@pytest.mark.parametrize("has_all", [False, True])
def test_the_records_of_a_chunk_are_written_at_once(chunks: Chunks, *, has_all: bool) -> None:
    """One by one, those for a client that does not read are copied again and again: a megabyte of them took a second."""
    server, client = socket.socketpair()
    with CountingSocket(fileno=server.detach()) as counted, client:
        sock = ClientSocket(counted, Limits(client_timeout=20, keepalive=20), {})
        sock.begin_request()
        sock.sendall(HEAD)
        body = StreamBody(Request(sock), b"", iter(chunks), by_record=True, telling=chunks)
        body.share_turns()
        chunks.has_all = has_all
        chunks.put(b"record\n" * 1000)
        chunks.put(None)
        before = counted.sends
        parts = [part for part in body if part]
        sock.sendall(b"0\r\n\r\n")
        body.close()
        assert not parts
        assert counted.sends - before < 5
        received = client.makefile("rb").read(len(HEAD) + 1000 * len(b"7\r\nrecord\n\r\n"))
        assert received == HEAD + b"7\r\nrecord\n\r\n" * 1000
