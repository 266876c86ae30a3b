"""No header of a request changes its path or says where it comes from, even from this machine or through a Unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from raw_http import connect, read_to_end
from serving import Server
from waiting import wait_until

HEADERS = (
    "SCRIPT_NAME: /ping",
    "SCRIPT_NAME: /",
    "SCRIPT_NAME: nonsense",
    "Script_Name: /ping",
    "SCRIPT-NAME: /ping",
    "PATH_INFO: /adapters",
    "REMOTE_ADDR: 10.0.0.1",
    "X-Forwarded-Prefix: /ping",
    "X-Forwarded-For: 10.0.0.1",
    "X-Forwarded-Proto: https",
    "X-Script-Name: /ping",
)


def get(sock: socket.socket, path: str, header: str) -> tuple[int, bytes]:
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n".encode())
    answer = read_to_end(sock)
    top, _, body = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), body


@pytest.mark.parametrize("header", HEADERS)
def test_over_tcp(echo_server: Server, header: str) -> None:
    assert get(connect(echo_server), "/ping", header)[0] == 200
    assert get(connect(echo_server), "/ping/v1/models", header)[0] == 404
    assert json.loads(get(connect(echo_server), "/v1/models", header)[1])["object"] == "list"
    assert get(connect(echo_server), "/xping", header)[0] == 404


def test_through_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = Server(tmp_path / "m", "option.rolling_batch=echo\n", environ={"GUNICORN_CMD_ARGS": f"--bind unix:{path}"})
    try:
        wait_until(path.exists, timeout=120)
        for header in HEADERS:
            for target, status in (("/ping", (200, 503)), ("/ping/v1/models", (404,))):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(60)
                sock.connect(str(path))
                assert get(sock, target, header)[0] in status, header
    finally:
        server.stop()
