"""Client sockets, without a server: which clients count as slow and which as idle."""

from __future__ import annotations

import contextlib
import io
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from facts import raises
from waiting import wait_until
from werkzeug.test import create_environ
from werkzeug.wrappers import Request

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.web import client_socket
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.client_socket import ClientSocket, Limits, Waiting
from lmi_handlers.web.connection import client_connected, limit_writes

MIB = 1 << 20


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection. The client's end has a small receive buffer."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(60)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            yield server, client


def send_all(sock: ClientSocket, data: bytes) -> None:
    with contextlib.suppress(ConnectionResetError):
        sock.sendall(data)


def receive_all(sock: ClientSocket) -> None:
    while sock.recv(1 << 16):
        pass


def test_client_that_reads_is_not_the_longest_idle_one() -> None:
    waiting: Waiting = {}
    limits = Limits(client_timeout=20, keepalive=20)
    with connection() as (server, reader), connection() as (other, _):
        busy, idle = ClientSocket(server, limits, waiting), ClientSocket(other, limits, waiting)
        sending = threading.Thread(target=send_all, args=(busy, bytes(8 * MIB)))
        listening = threading.Thread(target=idle.recv, args=(1,))
        sending.start()
        wait_until(lambda: time.monotonic() - waiting.get(busy, math.inf) > 0.5)  # the send buffer is full
        listening.start()
        wait_until(lambda: list(waiting) == [busy, idle])
        reader.recv(MIB // 2, socket.MSG_WAITALL)
        wait_until(lambda: list(waiting) == [idle, busy])
        assert waiting[busy] > waiting[idle]
        busy.hang_up()
        idle.hang_up()
        sending.join()
        listening.join()


def test_input_does_not_help_a_client_that_does_not_read() -> None:
    """A worker without room closes connections without input first. One more byte must not keep a stalled one open."""
    waiting: Waiting = {}
    limits = Limits(client_timeout=60, keepalive=60)
    with connection() as (server, stalled), connection() as (other, asking):
        sock, arrived = ClientSocket(server, limits, waiting), ClientSocket(other, limits, waiting)
        sending = threading.Thread(target=send_all, args=(sock, bytes(8 * MIB)))
        sending.start()
        wait_until(lambda: sock in waiting)
        for client in (stalled, asking):
            client.sendall(b"G")
        wait_until(arrived.has_input)
        assert is_readable(server, seconds=60)
        assert not sock.has_input()
        sock.cut()
        sending.join()


def test_burst_does_not_extend_the_limit_by_hours() -> None:
    with connection() as (server, client):
        sock = ClientSocket(server, Limits(client_timeout=1, keepalive=1), {})
        sock.begin_request()

        def send() -> None:
            client.sendall(bytes(MIB))
            for _ in range(100):
                if not ended.wait(0.1):
                    client.sendall(b"x")
            client.shutdown(socket.SHUT_WR)

        ended = threading.Event()
        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(TimeoutError):
            receive_all(sock)
        ended.set()
        sending.join()


@pytest.mark.parametrize(("timeout", "left"), [(5.0, 60.0), (5.0, 2.0), (None, 2.0)])
def test_deadline_never_extends_the_socket_timeout(timeout: float | None, left: float) -> None:
    with connection() as (server, _):
        server.settimeout(timeout)
        deadline = time.monotonic() + left
        limit_writes({"gunicorn.socket": server}, deadline)
        least = deadline - time.monotonic()
        limited = server.gettimeout()
        assert limited is not None
        most = math.inf if timeout is None else timeout
        assert min(most, least) <= limited <= min(most, left)


@contextlib.contextmanager
def answering() -> Iterator[tuple[ClientSocket, socket.socket]]:
    """A server's socket whose request has been read, and its client."""
    with connection() as (server, client):
        sock = ClientSocket(server, Limits(client_timeout=20, keepalive=20), {})
        sock.begin_request()
        yield sock, client


def is_readable(sock: socket.socket, seconds: float = 0.05) -> bool:
    return bool(select.select([sock], [], [], seconds)[0])


def test_held_data_is_sent_with_what_follows() -> None:
    with answering() as (sock, client):
        sock.hold_next()
        sock.sendall(b"head ")
        assert not is_readable(client)
        assert sock.ask(), "no byte may overtake what is held"
        sock.sendall(b"body ")
        assert is_readable(client, 20)
        assert client.recv(100) == b"head body "
        sock.sendall(b"more")
        assert client.recv(100) == b"more"


def test_chunks_are_written_without_waiting_for_the_client() -> None:
    """`flush` sends what does not fit, in order."""
    head, chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"x" * MIB
    with answering() as (sock, client):
        sock.sendall(head)
        assert sock.write_chunks([b"short"])
        written = 1
        while sock.write_chunks([chunk]):
            written += 1
        expected = head + b"5\r\nshort\r\n" + (b"100000\r\n" + chunk + b"\r\n") * written + b"0\r\n\r\n"
        assert sock.ask(), "no byte may come between the parts of a chunk"

        def end() -> None:
            sock.flush()
            sock.sendall(b"0\r\n\r\n")

        waiting = threading.Thread(target=end)
        waiting.start()
        received = b""
        while len(received) < len(expected):
            received += client.recv(MIB)
        waiting.join()
        assert received == expected
        assert sock.write_chunks([b"not chunked any more"])
        assert client.recv(100) == b"not chunked any more"


def test_flush_fails_if_the_client_has_left() -> None:
    with answering() as (sock, client):
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.close()
        wait_until(lambda: not sock.write_chunks([b"x"]))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.flush()


def test_client_that_has_left_is_noticed_although_it_was_sent_something() -> None:
    with answering() as (sock, client):
        environ = {"gunicorn.socket": sock}
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.close()
        assert client_connected(environ), "the kernel is not asked after each write"
        wait_until(lambda: not client_connected(environ))


def test_held_data_is_sent_at_the_end_if_nothing_follows() -> None:
    with answering() as (sock, client):
        sock.hold_next()
        sock.sendall(b"head")
        sock.end_request(complete=True)
        assert client.recv(100) == b"head"
        assert not is_readable(client)


def test_large_answer_arrives_completely() -> None:
    data = bytes(range(256)) * 8 * 4096  # more than the kernel buffers
    with answering() as (sock, client):
        sending = threading.Thread(target=send_all, args=(sock, data))
        sending.start()
        received = bytearray()
        while len(received) < len(data):
            received += client.recv(1 << 16)
        sending.join()
    assert received == data


class Upload(io.BytesIO):
    """A body that pauses after `size` bytes so that another one can be read."""

    def __init__(self, data: bytes, size: int, pause: Callable[[], None]) -> None:
        super().__init__(data)
        self._size = size
        self._pause = pause

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() == self._size:
            self._size = -1
            self._pause()
        return super().read(size)


def posted(body: io.BytesIO) -> Request:
    """A request whose head says the length of its body, from a server that ends the body there, as gunicorn does."""
    environ = create_environ(method="POST", input_stream=body, content_length=len(body.getvalue()))
    return Request(environ | {"wsgi.input_terminated": True})


def test_bodies_being_received_share_a_limit() -> None:
    arriving = ArrivingBodies(4 * MIB)
    large, small = bytes(4 * MIB), bytes(MIB // 4)
    outcomes: list[object] = []

    def others() -> None:
        with raises(QueueFull, "large body: 2 5 MiB", code="large_bodies_arriving"):
            arriving.read(posted(io.BytesIO(large)))
        outcomes.append(arriving.read(posted(io.BytesIO(small))))

    assert arriving.read(posted(Upload(large, 15 * MIB // 4, others))) == large
    assert outcomes == [small]
    assert arriving.read(posted(io.BytesIO(large))) == large, "rejected and complete bodies must not count"


def test_pings_do_not_make_a_client_less_idle() -> None:
    waiting: Waiting = {}
    with connection() as (server, client):
        sock = ClientSocket(server, Limits(client_timeout=60, keepalive=60), waiting)
        sock.begin_request()
        sock.begin_frames(b"")

        def since() -> float:
            """When the wait for the client began, once the next byte is waited for."""
            listening = threading.Thread(target=sock.recv, args=(1,))
            listening.start()
            wait_until(lambda: sock in waiting)
            began = waiting[sock]
            client.sendall(b"a")
            listening.join(60)
            return began

        since()
        sock.set_idle(True)
        first = since()
        sock.set_idle(True)
        assert since() == first
        sock.set_idle(False)
        begun = since()
        assert begun > first, "part of a message"
        sock.set_idle(True)
        sock.set_busy(True)
        sock.set_busy(False)
        assert since() > begun, "an answer has ended"


def test_the_last_frame_arrives_although_the_client_is_still_sending() -> None:
    with connection() as (server, client):
        sock = ClientSocket(server, Limits(client_timeout=60, keepalive=60), {})
        sock.begin_request()
        sock.begin_frames(b"")
        client.sendall(b"more")
        sock.sendall(b"bye")
        sock.end_request(complete=True)
        closing = threading.Thread(target=sock.close)
        closing.start()
        assert client.makefile("rb").read() == b"bye"  # and the end, not a reset
        client.sendall(b"even more")
        client.shutdown(socket.SHUT_WR)
        closing.join(60)
        assert not closing.is_alive()


def test_the_rest_of_a_body_is_read_for_a_limited_time_however_fast_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_socket, "_REST_LIMIT", 0.0)
    with connection() as (server, client):
        sock = ClientSocket(server, Limits(client_timeout=60, keepalive=60), {})
        client.sendall(bytes(1000))
        sock.expect_rest()
        assert sock.recv(10) == b""
