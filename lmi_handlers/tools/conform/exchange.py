"""Sends one request, and takes an answer that may be too long, too slow or no HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from lmi_handlers.tools.client.errors import CallRefused
from lmi_handlers.tools.client.server import ServerUrl, asked, parts_of

_MAX_BYTES = 4 * 2**20
_TARGET = "the server"


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer. Names of headers are in lower case; `seconds` is the time until its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


def exchange(
    server: ServerUrl, method: str, path: str, body: bytes | None, headers: Mapping[str, str], limit: float
) -> Received:
    """Send a request, and return the answer if it ends within `limit` seconds and is of reasonable size.

    Raises `CallRefused`, and of its kinds `Unreachable`.
    """
    started = time.monotonic()
    received = bytearray()
    with asked(server, method, server.path + path, body, headers, target=_TARGET, limit=limit) as response:
        for part in parts_of(response, _TARGET):
            received += part
            if len(received) > _MAX_BYTES:
                raise CallRefused(f"{_TARGET}: the answer is longer than {_MAX_BYTES} bytes")
    return Received(
        status=response.status,
        headers={name.lower(): value for name, value in response.getheaders()},
        body=bytes(received),
        seconds=time.monotonic() - started,
    )
