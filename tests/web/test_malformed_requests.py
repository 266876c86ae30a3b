"""The log says what is wrong with a request that gunicorn cannot read, and nothing that its client has sent."""

from __future__ import annotations

import pytest
from raw_http import connect, head, read_to_end
from serving import API_KEY, Server
from waiting import wait_until

PROMPT = "my s3cret diary"
START = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (f"GET x:a?api_key={API_KEY} HTTP/1.1\r\n\r\n".encode(), "Invalid HTTP request line: (not shown)"),
        (START + f"Authorization Bearer {API_KEY}\r\n\r\n".encode(), "Invalid HTTP Header: (not shown)"),
        (START + f"x-api-key: it's {API_KEY}\x01\r\n\r\n".encode(), "Invalid HTTP Header: 'X-API-KEY'"),
        (START + f"it's {API_KEY}\r\n\r\n".encode(), "Invalid HTTP Header: (not shown)"),
        (START + f"Content-Length: {API_KEY}\r\n\r\n".encode(), "Invalid HTTP Header: 'CONTENT-LENGTH'"),
        (f"{API_KEY.upper()}: x\r\n\r\n".encode(), "Invalid HTTP request line: (not shown)"),
        (b"SECRET S3CRET HTTP/1.1\r\n\r\n", "(not shown)"),
        (head("/ping", "Content-Length: 5") + PROMPT.encode() + b"\r\n\r\n", "(not shown)"),
    ],
)
def test_what_the_log_says(guarded_server: Server, sent: bytes, logged: str) -> None:
    before = len(guarded_server.log)
    read_to_end(connect(guarded_server, sent))
    wait_until(lambda: "Invalid request from ip=127.0.0.1: " in guarded_server.log[before:])
    lines = guarded_server.log[before:]
    assert logged in lines
    assert "s3cret" not in lines.lower()
