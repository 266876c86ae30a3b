"""Sends one request, and takes an answer that may be too long, too slow or no HTTP."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import msgspec

from lmi_handlers.tools.client.server import CHUNK, ServerUrl

_CONNECT_SECONDS = 10
_MAX_BYTES = 4 * 2**20


class ExchangeFailed(Exception):
    """There is no answer to look at. The text is the cause. `unreachable` is true if the server takes no connection."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


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

    Redirections are not followed, so `headers` go to this server only. Raises `ExchangeFailed`.
    """
    started = time.monotonic()
    with closing(server.connection(min(limit, _CONNECT_SECONDS))) as connection:
        try:
            connection.connect()
        except (OSError, ValueError) as error:
            raise ExchangeFailed(f"no connection: {error}", unreachable=True) from error
        with _ended_after(connection, limit) as expired:
            try:
                connection.request(method, server.path + path, body, dict(headers))
                response = connection.getresponse()
                received = _received(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if expired.is_set():
                    raise ExchangeFailed(f"the answer has no end after {limit:g} s") from error
                raise ExchangeFailed(f"no complete answer: {error or type(error).__name__}") from error
            if expired.is_set():  # a body without a length ends with the connection
                raise ExchangeFailed(f"the answer has no end after {limit:g} s")
    return Received(
        status=response.status,
        headers={name.lower(): value for name, value in response.getheaders()},
        body=received,
        seconds=time.monotonic() - started,
    )


def _received(response: http.client.HTTPResponse) -> bytes:
    received = bytearray()
    while part := response.read1(CHUNK):
        received += part
        if len(received) > _MAX_BYTES:
            raise ExchangeFailed(f"the answer is longer than {_MAX_BYTES} bytes")
    if response.length:  # http.client checks only chunked bodies
        raise http.client.IncompleteRead(bytes(received), response.length)
    return bytes(received)


@contextmanager
def _ended_after(connection: http.client.HTTPConnection, limit: float) -> Iterator[threading.Event]:
    """End the connection after `limit` seconds, however often the server sends a byte. The event says that it was so."""
    expired, sock = threading.Event(), connection.sock  # the connection forgets it when the response is the last one

    def end() -> None:
        expired.set()
        with contextlib.suppress(OSError):  # it has just ended by itself
            sock.shutdown(socket.SHUT_RDWR)

    sock.settimeout(limit)
    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()
