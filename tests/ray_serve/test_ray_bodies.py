"""What happens to a request in the process of a replica: the gate before Ray's code, and how bodies are read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from raw_http import read_to_end
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lmi_handlers.ray.bodies import ClientLeft, read_head
from lmi_handlers.ray.gate import AHEAD_BYTES, Gate, taking


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the HTTP server that Ray uses, with the gate before an application that answers with a header."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(dict(scope["headers"]).get(b"x-request-id", b"").decode())(scope, receive, send)

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        server = uvicorn.Server(uvicorn.Config(Gate(application), lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


def answer(port: int, *fields: bytes) -> bytes:
    """All that is received until the server closes the connection."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.sendall(b"\r\n".join((b"GET / HTTP/1.1", b"Host: localhost", *fields)) + b"\r\n\r\n")
    return read_to_end(sock)


def test_a_websocket_is_refused_and_closed(port: int) -> None:
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    raw = answer(port, b"Connection: Upgrade", b"Upgrade: websocket", key, b"Sec-WebSocket-Version: 13")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body) == {"error": "WebSockets are not supported", "code": 400}


@pytest.mark.parametrize(
    ("value", "expected"), [("ü".encode(), "ü"), ("ü".encode("latin-1"), "ü"), (b"\xff\xfe", "ÿþ")]
)
def test_headers_are_utf8_whatever_was_sent(port: int, value: bytes, expected: str) -> None:
    raw = answer(port, b"X-Request-Id: " + value, b"Connection: close")
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert raw.endswith(b"\r\n\r\n" + expected.encode())


@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
def test_ray_reads_only_so_much_ahead_of_who_takes_a_body() -> None:
    from ray.serve._private.direct_ingress_http_util import ASGIDIReceiveProxy

    part, number = b"x" * 10_000, 100

    async def read() -> None:
        sent = taken = 0

        async def receive() -> Message:
            nonlocal sent
            if sent == number * len(part):
                return {"type": "http.disconnect"}
            sent += len(part)
            return {"type": "http.request", "body": part, "more_body": sent < number * len(part)}

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal taken
            proxy = ASGIDIReceiveProxy(scope, receive, asyncio.get_running_loop())
            fetching = proxy.fetch_until_disconnect_task()
            for _ in range(3 * number):
                await asyncio.sleep(0)  # all that it would read
            assert AHEAD_BYTES <= sent <= AHEAD_BYTES + len(part)
            _, body = await read_head(taking(scope, proxy), 0)
            assert body is not None
            assert not isinstance(body, bytes)
            async for piece in body:
                taken += len(piece)
                await asyncio.sleep(0)
                assert sent - taken <= AHEAD_BYTES + 2 * len(part)
            await fetching  # it has noticed that the client has left

        async def send(message: Message) -> None:
            raise AssertionError(message)

        await Gate(application)({"type": "http", "headers": []}, receive, send)
        assert taken == sent == number * len(part)

    asyncio.run(read())


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=10), st.integers(0, 200))
def test_a_body_is_whole_wherever_its_head_ends(parts: list[bytes], size: int) -> None:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False

    async def read() -> tuple[bytes, bytes]:
        async def receive() -> Message:
            return messages.pop(0)

        head, body = await read_head(receive, size)
        assert body is not None
        return head, body if isinstance(body, bytes) else b"".join([part async for part in body])

    head, body = asyncio.run(read())
    assert body == b"".join(parts)
    assert body.startswith(head)
    assert len(head) >= min(size, len(body))


def test_a_client_that_sends_slowly_is_not_waited_for() -> None:
    async def read() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        await messages.put({"type": "http.request", "body": b"a", "more_body": True})
        head, body = await read_head(messages.get, 100)
        assert head == b"a"
        assert body is not None
        assert not isinstance(body, bytes)
        await messages.put({"type": "http.request", "body": b"b", "more_body": True})
        await messages.put({"type": "http.disconnect"})
        assert [await anext(body), await anext(body)] == [b"a", b"b"]
        with pytest.raises(ClientLeft):
            await anext(body)

    asyncio.run(read())


def test_a_client_that_sends_byte_by_byte_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmi_handlers.ray.bodies._HEAD_SECONDS", 0.05)

    async def receive() -> Message:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"a", "more_body": True}

    head, body = asyncio.run(read_head(receive, 1 << 20))
    assert 0 < len(head) < 1 << 20
    assert not isinstance(body, bytes)


def test_a_client_that_has_sent_nothing_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmi_handlers.ray.bodies._HEAD_SECONDS", 0.01)

    async def read() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        head, body = await read_head(messages.get, 100)
        assert head == b""
        assert body is not None
        assert not isinstance(body, bytes)
        await messages.put({"type": "http.request", "body": b"late", "more_body": False})
        assert [part async for part in body] == [b"", b"late"], "with the first, the request's head is sent"

    asyncio.run(read())
