"""HTTP to the remote engine. Nothing that it sends is trusted: every read has a bound."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from lmi_handlers.core.errors import InvalidRequest, QueueFull, RequestError, RequestFailed

MAX_EVENT = 1 << 20
"""Bytes of one event of a stream: some tokens with their log probabilities."""

MAX_ANSWER = 8 << 20
"""Bytes of an answer about the remote itself, which may contain its chat template."""

_CONNECT_SECONDS = 10.0

_IDLE_SECONDS = 3.0
"""After so long, an unused connection is closed. Servers do so after 5 s, and a request sent just then would be lost."""

_LONGEST_MESSAGE = 400

ConnectionFailed = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Raised if the remote cannot be reached, or closes the connection."""


NotConnected = (aiohttp.ClientConnectorError,)
"""Those of `ConnectionFailed` that are raised before anything was sent."""


class RemoteAnswer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes


class Client:
    """A session with one remote. Made and used in an event loop. `key` is the remote's, None if it needs none.

    With `unix_socket`, that is the path of its Unix socket, and the URL only has the name of the host that it is told.
    """

    def __init__(self, url: str, key: str | None, unix_socket: Path | None = None) -> None:
        headers = {"Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._url = url
        connector: aiohttp.BaseConnector
        if unix_socket is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
        else:
            connector = aiohttp.UnixConnector(str(unix_socket), limit=0, keepalive_timeout=_IDLE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,  # a few compressed bytes may be many
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def ask(self, path: str, body: Any = None, *, seconds: float, longest: int = MAX_ANSWER) -> RemoteAnswer:
        """Return the answer to a GET, or to a POST of `body` as JSON.

        Raises one of `ConnectionFailed`, or `RequestFailed` for an answer with more than `longest` bytes.
        """
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        async with self._request(path, body, timeout=timeout) as response:
            return RemoteAnswer(response.status, await _read(response, longest))

    async def answer(self, path: str, body: Any, *, longest: int) -> bytes:
        """Return the whole answer to a request that generates. Raises as `events` does."""
        async with self._request(path, body) as response:
            await _check(response)
            return await _read(response, longest)

    async def events(self, path: str, body: Any, *, longest: int = MAX_EVENT) -> AsyncGenerator[bytes, None]:
        """Yield the data of each event of a stream.

        Raises one of `ConnectionFailed`, the error of `rejection` if the remote does not accept the request, and
        `RequestFailed` for what is not a stream of events.
        """
        async with self._request(path, body) as response:
            await _check(response)
            if response.content_type != "text/event-stream":
                raise RequestFailed(
                    f"the remote engine answered with {one_line(response.content_type)}, not with events"
                )
            rest = bytearray()
            async for chunk in response.content.iter_any():
                *lines, last = chunk.split(b"\n")
                if lines and rest:
                    lines[0] = bytes(rest) + lines[0]
                    rest.clear()
                for line in lines:
                    if line.startswith(b"data:"):
                        yield line[5:].strip()
                rest += last
                if len(rest) > longest:
                    raise RequestFailed(f"the remote engine sent an event with more than {longest} bytes")

    def _request(self, path: str, body: Any, **options: Any) -> Any:
        if body is None:
            return self._session.get(self._url + path, allow_redirects=False, **options)
        headers = {"Content-Type": "application/json"}
        data = msgspec.json.encode(body)
        return self._session.post(self._url + path, data=data, headers=headers, allow_redirects=False, **options)


async def _read(response: aiohttp.ClientResponse, longest: int) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > longest:
            raise RequestFailed(f"the remote engine sent an answer with more than {longest} bytes")
    return b"".join(parts)


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise an error unless the remote has accepted the request."""
    if response.status == 200:
        return
    raise rejection(response.status, error_message(await _read(response, MAX_ANSWER)))


def rejection(status: int | str | None, message: str) -> RequestError:
    """Return the error for a request that the remote has rejected, or has not answered to its end.

    `InvalidRequest` if the remote says that the request is wrong, `QueueFull` if it has no room for it.
    """
    if str(status) in ("400", "413", "422"):
        return InvalidRequest(f"the remote engine rejected the request: {message}")
    if str(status) in ("429", "503"):
        return QueueFull(f"the remote engine accepts no more requests (status {status}): {message}")
    shown = f" (status {status})" if isinstance(status, int) and 0 < status < 1000 else ""
    return RequestFailed(f"the remote engine ended the request{shown}: {message}")


def error_message(body: bytes) -> str:
    """Return what an error says, on one line: `error.message`, `error`, `message` or `detail`, else the body itself."""
    found: Any = None
    try:
        found = msgspec.json.decode(body)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and name in found:
                found = found[name]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    return one_line(found if isinstance(found, str) and found else body.decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """Return the beginning of a text of the remote, without anything that does not belong in a log line."""
    words = " ".join(text[: 2 * _LONGEST_MESSAGE].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return (shown if len(shown) <= _LONGEST_MESSAGE else f"{shown[:_LONGEST_MESSAGE]}...") or "no message"


def reason(error: BaseException) -> str:
    """Return why a connection failed, on one line. The remote's address is left out, because clients see this."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    text = str(error)
    if isinstance(error, aiohttp.ClientResponseError):
        text = error.message
    elif isinstance(error, asyncio.TimeoutError):
        text = "timed out"
    elif isinstance(error, ssl.SSLError | socket.gaierror):  # their numbers are not those of the system
        text = error.strerror or ""
    elif isinstance(error, OSError) and error.errno is not None:
        text = os.strerror(error.errno)
    return one_line(text or type(error).__name__)
