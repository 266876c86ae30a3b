"""HTTP over plain sockets, for requests that no well-behaved client sends and for responses byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from serving import Server


def connect(server: Server, data: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
    """Open a connection and send `data`."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(data)
    return sock


def head(path: str, *fields: str, version: str = "1.1") -> bytes:
    """The head of a POST request."""
    lines = (f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *fields)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def request(body: object, path: str = "/invocations", *fields: str, version: str = "1.1") -> bytes:
    """A POST request with a JSON body."""
    data = json.dumps(body).encode()
    return head(path, f"Content-Length: {len(data)}", *fields, version=version) + data


def read_to_end(sock: socket.socket) -> bytes:
    """Everything received until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError), sock:
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def status_and_body(raw: bytes) -> tuple[int, Any]:
    """Status and body of one complete response with a Content-Length."""
    top, _, body = raw.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in top, raw
    return int(top.split()[1]), json.loads(body)


def dechunked(raw: bytes) -> bytes:
    """The body of a chunked response. Fails unless its end is well-formed."""
    rest = raw.partition(b"\r\n\r\n")[2]
    chunks: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        assert size, raw
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) :]
        assert rest.startswith(b"\r\n"), raw
        rest = rest[2:]
        if not chunk:
            assert not rest, raw
            return b"".join(chunks)
        chunks.append(chunk)
