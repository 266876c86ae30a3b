"""Clients that send incomplete or malformed requests, half-close connections or do not read: none affects the others."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from facts import says
from raw_http import connect, dechunked, head, read_to_end, request, status_and_body
from serving import Server, StartServer
from waiting import wait_until

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"
ROUTES = {
    "/invocations": {"inputs": "hello"},
    "/generate": {"inputs": "hello"},
    "/v1/completions": {"prompt": "hello"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits one second for clients and runs two sequences at a time. A slow test is a slow client, too."""
    properties = ECHO + "option.client_timeout=1\noption.predict_timeout=30\noption.max_rolling_batch_size=2\n"
    server = Server(tmp_path_factory.mktemp("limits") / "m", properties)
    yield server.wait_ready()
    server.stop()
    assert "Traceback" not in server.log


# Incomplete requests


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", b""), (b"POST /invocations HT", b"HTTP/1.1 408 Request Timeout"), (head("/ping")[:-2], b"HTTP/1.1 408")],
    ids=["nothing", "half a line", "half a head"],
)
def test_connection_is_closed_if_the_head_does_not_arrive(server: Server, data: bytes, expected: bytes) -> None:
    raw = read_to_end(connect(server, data))
    assert raw.startswith(expected)
    assert bool(raw) == bool(expected)


def trickle(sock: socket.socket, data: bytes) -> None:
    """Send byte by byte until the server responds."""
    for byte in data:
        if select.select([sock], [], [], 0.05)[0]:
            return
        sock.sendall(bytes([byte]))
    raise AssertionError("the server took all of it")


def test_time_limit_holds_for_the_whole_head(server: Server) -> None:
    sock = connect(server)
    trickle(sock, head("/invocations", *("X-Slow: 1",) * 40))
    assert read_to_end(sock).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_stalled_body_is_a_408_in_the_shape_of_the_api(server: Server, path: str, framing: str) -> None:
    start = b'{"inputs"' if "Length" in framing else b'9\r\n{"inputs"\r\n'
    raw = read_to_end(connect(server, head(path, framing) + start))
    status, body = status_and_body(raw)
    assert status == 408
    assert b"\r\nConnection: close\r\n" in raw
    assert "did not arrive in time" in str(body["error"])


def test_body_that_arrives_byte_by_byte_is_too_slow(server: Server) -> None:
    sock = connect(server, head("/invocations", "Content-Length: 100000"))
    trickle(sock, b" " * 400)
    assert status_and_body(read_to_end(sock))[0] == 408


def test_slow_body_is_accepted_as_long_as_it_advances(server: Server) -> None:
    data = json.dumps({"inputs": "hello", "parameters": {"unknown": "x" * 20_000}}).encode()
    sock = connect(server, head("/invocations", f"Content-Length: {len(data)}", "Connection: close"))
    for start in range(0, len(data), 800):  # 2.5 seconds in all
        sock.sendall(data[start : start + 800])
        time.sleep(0.1)
    assert status_and_body(read_to_end(sock)) == (200, {"generated_text": "hello"})


# Malformed requests

CHUNK = b'13\r\n{"inputs": "hello"}\r\n'
assert len(b'{"inputs": "hello"}') == 0x13
MALFORMED: dict[str, bytes] = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "size is a word": b"zz\r\nabc\r\n0\r\n\r\n",
    "size in hexadecimal notation": b"0x3\r\nabc\r\n0\r\n\r\n",
    "negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "size with a plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "size with an underscore": b"1_3\r\nabc\r\n0\r\n\r\n",
    "size with a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "size with a space after": b"3 \r\nabc\r\n0\r\n\r\n",
    "size in other digits": "\u0663\r\nabc\r\n0\r\n\r\n".encode(),
    "size with a fraction": b"3.0\r\nabc\r\n0\r\n\r\n",
    "size with a NUL": b"3\0\r\nabc\r\n0\r\n\r\n",
    "size without end": b"3" * 20_000,
    "size line ends in LF": b"3\nabc\n0\n\n" + b"x" * 9000,
    "size line ends in CR": b"3\rabc\r\n0\r\n\r\n",
    "chunk longer than its size": b"3\r\nabcdef\r\n0\r\n\r\n",
    "chunk shorter than its size": b"9\r\nabc\r\n0\r\n\r\n\r\n",
    "chunk ends in LF": b"3\r\nabc\n0\r\n\r\n",
    "no end of a chunk": b"3\r\nabc0\r\n\r\n",
    "extension with a CR": CHUNK + b"0;a=\rb\r\n\r\n",
    "extension without a name": CHUNK + b"0;=b\r\n\r\n",
    "extension with an open quote": CHUNK + b'0;a="b\r\n\r\n',
    "extension with a NUL": CHUNK + b"0;a=\0\r\n\r\n",
    "trailer without a colon": CHUNK + b"0\r\nabc\r\n\r\n",
    "trailer without a name": CHUNK + b"0\r\n: abc\r\n\r\n",
    "trailer with a space in its name": CHUNK + b"0\r\na b: c\r\n\r\n",
    "trailer with a NUL": CHUNK + b"0\r\na: \0\r\n\r\n",
    "folded trailer": CHUNK + b"0\r\na: b\r\n c\r\n\r\n",
    "trailer ends in LF": CHUNK + b"0\r\na: b\n\r\n",
    "trailer that frames": CHUNK + b"0\r\nContent-Length: 3\r\n\r\n",
    "trailers without end": CHUNK + b"0\r\n" + b"a: b\r\n" * 200_000,
    "nothing after the last chunk": CHUNK + b"0\r\n",
    "nothing after a chunk": CHUNK,
    "nothing at all": b"",
}


ON_EACH_ROUTE = ("size is a word", "trailer without a colon", "nothing after a chunk")
"""Cases that `make test` runs on every route. It runs the others on the first route only."""


def malformed() -> Iterator[Any]:
    for number, path in enumerate(ROUTES):
        for form, chunks in MALFORMED.items():
            marks = [pytest.mark.long] if number > 0 and form not in ON_EACH_ROUTE else []
            yield pytest.param(path, chunks, id=f"{form}-{path}", marks=marks)


@pytest.mark.parametrize(("path", "chunks"), list(malformed()))
def test_malformed_chunks_are_a_400_in_the_shape_of_the_api(slow_server: Server, path: str, chunks: bytes) -> None:
    sock = connect(slow_server, head(path, "Transfer-Encoding: chunked"))
    with contextlib.suppress(ConnectionError):
        sock.sendall(chunks)
        sock.shutdown(socket.SHUT_WR)
    raw = read_to_end(sock)
    status, body = status_and_body(raw)
    assert status == 400
    assert b"\r\nConnection: close\r\n" in raw
    assert "malformed" in str(body["error"]) or "closed" in str(body["error"])


@pytest.mark.parametrize("path", ["/ping", "/nowhere"])
def test_malformed_body_that_is_not_read_only_closes_its_connection(server: Server, path: str) -> None:
    raw = read_to_end(connect(server, head(path, "Transfer-Encoding: chunked") + b"zz\r\n"))
    assert raw.count(b"HTTP/1.1 ") == 1
    assert raw.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("reset", [True, False])
def test_client_that_disconnects_during_upload_is_one_log_line(slow_server: Server, framing: str, reset: bool) -> None:
    path = f"/predictions/{slow_server.name}"
    logged = len(lines(slow_server, path))
    sock = connect(slow_server, head(path, framing, "Expect: 100-continue"))
    assert sock.recv(100).startswith(b"HTTP/1.1 100")  # a reset would discard a head that nobody has read
    sock.sendall(b'9\r\n{"inputs"\r\n')
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    wait_until(lambda: len(lines(slow_server, path)) > logged)
    [line] = lines(slow_server, path)[logged:]
    assert line["status"] in (400, 499)
    assert line["error"].startswith(("MalformedRequest: the connection was closed", "ClientDisconnected"))


def lines(server: Server, path: str) -> list[dict[str, Any]]:
    """The log entries of requests for `path`."""
    records = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [record for record in records if record.get("path") == path]


def test_body_shorter_than_its_content_length_is_rejected(slow_server: Server) -> None:
    sock = connect(slow_server, head("/invocations", "Content-Length: 10") + b"123")
    sock.shutdown(socket.SHUT_WR)
    status, body = status_and_body(read_to_end(sock))
    assert (status, says(body["error"], "closed 7 bytes missing")) == (400, True)


# Half-closed connections

SLOW = {"inputs": "abcdefgh", "parameters": {"max_new_tokens": 8, "details": True}}


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that generates eight tokens per second and runs two sequences at a time."""
    properties = ECHO + "option.echo_tokens_per_second=8\noption.max_rolling_batch_size=2\noption.echo_load_seconds=1\n"
    server = Server(tmp_path_factory.mktemp("slow") / "m", properties)
    yield server.wait_ready()
    server.stop()
    assert "Traceback" not in server.log


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [False, True])
def test_half_closed_client_receives_its_whole_answer(slow_server: Server, stream: bool, version: str) -> None:
    body = SLOW | {"stream": stream}
    answers = []
    for half_close in (False, True):
        sock = connect(slow_server, request(body, "/invocations", "Connection: close", version=version))
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        answers.append(read_to_end(sock))
    whole, half = [without_date(raw) for raw in answers]
    if stream and version == "1.1":
        # The chunk boundaries may differ.
        assert half.partition(b"\r\n\r\n")[0] == whole.partition(b"\r\n\r\n")[0]
        whole, half = dechunked(whole), dechunked(half)
    assert whole == half
    assert b"abcdefgh" in half


def without_date(raw: bytes) -> bytes:
    """A response without its date and request id."""
    return re.sub(rb"\r\n(Date|x-request-id): [^\r]*", b"", raw)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("half_closed_before", [False, True])
def test_client_that_disconnects_while_no_tokens_arrive(
    slow_server: Server, stream: bool, half_closed_before: bool
) -> None:
    body = {"inputs": "abc HANG@3", "stream": stream}
    socks = [connect(slow_server, request(body)) for _ in range(2)]
    for sock in socks:
        if stream:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        if half_closed_before:
            sock.shutdown(socket.SHUT_WR)
    time.sleep(1.0)  # the engine hangs after the second token
    for sock in socks:
        with sock:
            sock.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                sock.recv(1 << 16)
    assert slow_server.invoke({"inputs": "x"}, timeout=60).json() == {"generated_text": "x"}


# Clients that do not read


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose `predict_timeout` is shorter than its limit for slow clients."""
    properties = ECHO + "option.client_timeout=20\noption.predict_timeout=2\noption.max_rolling_batch_size=2\n"
    server = Server(tmp_path_factory.mktemp("hasty") / "m", properties)
    yield server.wait_ready()
    server.stop()
    assert "Traceback" not in server.log


@pytest.mark.parametrize("record", ["short", "long"])
def test_client_that_never_reads_is_disconnected_at_its_deadline(hasty_server: Server, record: str) -> None:
    """A second of short records fits into the kernel's buffers. Long ones do not, so the server cannot send the end."""
    server = hasty_server
    parameters: dict[str, Any] = {"max_new_tokens": 1_000_000, "ignore_eos_token": True}
    if record == "long":
        parameters |= {"details": True, "top_n_tokens": 20}
    body = {"inputs": "abc", "stream": True, "parameters": parameters}
    path = f"/predictions/{server.name}/{record}"
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(server, request(body, path), receive_buffer=4096)) for _ in range(2)]
        wait_until(lambda: server.invoke({"inputs": "next"}).status_code == 200)
        wait_until(lambda: len(lines(server, path)) == 2)
        wait_until(lambda: not any(server_keeps(sock) for sock in socks))
    for line in lines(server, path):
        assert says(line["error"], "DeadlineExceeded not finish predict_timeout")


def server_keeps(sock: socket.socket) -> bool:
    """Whether the server's end of this connection still exists, even if only in the kernel with unsent data."""
    try:
        ends = (sock.getpeername(), sock.getsockname())
    except OSError:
        return False  # the connection was reset
    return any((connection.laddr, connection.raddr) == ends for connection in psutil.net_connections("tcp4"))


def test_document_that_is_not_read_is_cut_off(server: Server) -> None:
    parameters = {"max_new_tokens": 2000, "ignore_eos_token": True, "details": True, "top_n_tokens": 20}
    path = f"/predictions/{server.name}/document"
    with connect(server, request({"inputs": "abc", "parameters": parameters}, path), receive_buffer=4096) as sock:
        wait_until(lambda: len(lines(server, path)) == 1)
        assert lines(server, path)[0]["generated_tokens"] == 2000
        wait_until(lambda: not server_keeps(sock))


def test_document_must_be_read_within_predict_timeout(hasty_server: Server) -> None:
    """Even by a client that reads steadily. Otherwise it could make the server hold an answer for hours."""
    parameters = {"max_new_tokens": 200, "ignore_eos_token": True, "details": True, "top_n_tokens": 20}
    with connect(hasty_server, request({"inputs": "abc", "parameters": parameters}), receive_buffer=4096) as sock:
        top = sock.recv(1000)
        size = int(re.findall(rb"Content-Length: (\d+)", top)[0])
        assert size > 120_000, "at 20,000 bytes per second, more than predict_timeout"
        with pytest.raises(ConnectionResetError):
            read_slowly(sock)


def read_slowly(sock: socket.socket) -> None:
    while sock.recv(2000):
        time.sleep(0.1)


def test_batch_whose_client_has_left_is_logged_as_one(slow_server: Server) -> None:
    path = f"/predictions/{slow_server.name}/batch"
    body = b"".join(json.dumps(SLOW | {"inputs": f"{number}bcdefgh"}).encode() + b"\n" for number in range(4))
    fields = ("Content-Type: application/jsonlines", f"Content-Length: {len(body)}")
    top = head(path, *fields).replace(b"Content-Type: application/json\r\n", b"")
    with connect(slow_server, top + body) as sock:
        assert b"abcdefgh" not in sock.recv(1000)
    wait_until(lambda: len(lines(slow_server, path)) == 1)
    assert says(lines(slow_server, path)[0]["error"], "ClientDisconnected client closed")


def test_shutdown_does_not_wait_for_idle_clients(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.echo_tokens_per_second=4000\n")
    parameters = {"max_new_tokens": 1_000_000, "ignore_eos_token": True, "details": True, "top_n_tokens": 20}
    with contextlib.ExitStack() as stack:
        body = {"inputs": "abc", "stream": True, "parameters": parameters}
        stack.enter_context(connect(server, request(body), receive_buffer=4096))
        stack.enter_context(connect(server, head("/invocations", "Content-Length: 1000") + b'{"inputs"'))
        time.sleep(3.0)  # time for the buffers to fill up
        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert server.process.wait(40) == 0
        assert time.monotonic() - started < 18, "shutdown took its full 23 seconds"
    assert "Traceback" not in server.log


# Many clients


def test_ping_is_answered_despite_many_incomplete_requests(start_server: StartServer) -> None:
    few, text = {"GUNICORN_CMD_ARGS": "--worker-connections 40"}, "abcdefgh" * 8
    server = start_server(ECHO + "option.echo_tokens_per_second=16\n", environ=few)
    kinds = [
        b"",
        b"GET /pi",
        head("/invocations", "Content-Length: 1000") + b"{",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    with contextlib.ExitStack() as stack:
        body = {"inputs": text, "stream": True, "parameters": {"max_new_tokens": len(text)}}
        stream = stack.enter_context(connect(server, request(body, version="1.0")))
        assert stream.recv(9) == b"HTTP/1.0 "
        for number in range(300):
            stack.enter_context(connect(server, kinds[number % len(kinds)]))
            if number % 30 == 29:
                assert server.ping().status_code == 200
        assert f'"generated_text": "{text}"'.encode() in read_to_end(stream), "a running request was disconnected"
    assert "Traceback" not in server.log


def test_requests_are_answered_with_few_open_files(start_server: StartServer) -> None:
    """As many containers have it: a hard limit of 1,024. All connections come before the first request."""
    server = start_server(
        ECHO + "option.web_workers=1\noption.echo_tokens_per_second=4\noption.max_rolling_batch_size=400\n", ready=False
    )
    psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
    server.wait_ready()
    assert {worker.rlimit(psutil.RLIMIT_NOFILE)[1] for worker in server.web_workers()} == {1024}
    with contextlib.ExitStack() as stack:
        data = request({"inputs": "abcdefgh"})
        sockets = [stack.enter_context(connect(server)) for _ in range(150)]
        assert server.ping().status_code == 200  # by now, all connections have been accepted
        for each in sockets:
            each.sendall(data)
        answers = [status_and_body(read_to_end_of_answer(each)) for each in sockets]
    assert {status for status, _ in answers} == {200}


def read_to_end_of_answer(client: socket.socket) -> bytes:
    """An answer with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(65536)
        assert part, "closed without an answer"
        data += part
    length = int(re.search(rb"content-length: (\d+)", data, re.IGNORECASE)[1])  # type: ignore[index]
    while len(data.partition(b"\r\n\r\n")[2]) < length:
        part = client.recv(65536)
        assert part, "closed within an answer"
        data += part
    return data


# A web worker that hangs


def test_hanging_worker_is_replaced(start_server: StartServer) -> None:
    """One that boots, and one that serves."""
    server = start_server(ECHO, "--workers", "2", environ={"GUNICORN_CMD_ARGS": "--timeout 8"}, ready=False)
    for _ in range(2):
        wait_until(lambda: len(psutil.Process(server.process.pid).children()) == 3)  # the supervisor is a child, too
        wedged, _ = server.web_workers()
        wedged.suspend()
        wait_until(lambda pid=wedged.pid: not psutil.pid_exists(pid), timeout=60)  # type: ignore[misc]  # bound now
        wait_until(lambda: len(server.web_workers()) == 2, timeout=60)
        server.wait_ready()
        assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
