"""Sends one GET over https, only to an address that has been checked.

The host name is resolved once, by `AllowedMedia.resolve`. The connection goes to one of those addresses, and the
certificate must match the host name. Redirects are not followed, and proxies from the environment are not used.

Uses `http.client`, because requests and urllib3 resolve the name again or limit only each read, not the whole exchange.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator

from lmi_handlers import __version__
from lmi_handlers.core.connection_limit import ended_after
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.media.allowed import HTTPS_PORT, Location

_CONNECT_TIMEOUT = 3.0
_OK = 200
_REDIRECTS = range(300, 400)
_CHUNK = 1 << 16
_TOO_LONG = "cannot be fetched: it takes too long"


def fetch(
    location: Location, addresses: list[str], *, max_bytes: int, deadline: float, accept: str, option: str
) -> bytes:
    """Return the body from the first reachable address. `deadline` is a time on the monotonic clock.

    `accept` is the media type to ask for. Raises `InvalidRequest` if the fetch fails, takes too long or returns more than
    `max_bytes`, which `option` sets.
    """
    for address in addresses:
        try:
            timeout = min(_CONNECT_TIMEOUT, _left(deadline))
            connection = socket.create_connection((address, location.port), timeout)
        except OSError:
            continue
        with (
            contextlib.closing(connection.dup()) as control,  # TLS takes over the original socket
            ended_after(control, deadline - time.monotonic()) as expired,
            connection,
        ):
            try:
                body = b"".join(_download(connection, location, max_bytes, accept, option))
            except (OSError, http.client.HTTPException) as error:
                reason = _TOO_LONG if expired.is_set() else f"cannot be fetched: {type(error).__name__}"
                raise InvalidRequest(reason) from error
            if expired.is_set():
                raise InvalidRequest(_TOO_LONG)
            return body
    raise InvalidRequest("cannot be fetched: no connection to the host")


def too_large(max_bytes: int, option: str) -> InvalidRequest:
    """Return the error for a file that has more than the bytes that `option` allows."""
    return InvalidRequest(f"has more than {max_bytes} bytes (option.{option})")


def _download(
    connection: socket.socket, location: Location, max_bytes: int, accept: str, option: str
) -> Iterator[bytes]:
    connection.settimeout(None)  # the deadline limits the whole exchange
    with ssl.create_default_context().wrap_socket(connection, server_hostname=location.host) as secure:
        exchange = http.client.HTTPConnection(location.host, location.port)
        exchange.sock = secure  # so that it does not open a connection itself
        name = location.host if location.port == HTTPS_PORT else f"{location.host}:{location.port}"
        headers = {"Host": name, "User-Agent": f"lmi-handlers/{__version__}", "Accept": accept}
        exchange.request("GET", location.target, headers=headers | {"Connection": "close"})
        with exchange.getresponse() as response:
            if response.status in _REDIRECTS:
                raise InvalidRequest("is a redirect, and redirects are not followed")
            if response.status != _OK:
                raise InvalidRequest(f"cannot be fetched: the host returned status {response.status}")
            received = 0
            while piece := response.read1(_CHUNK):
                received += len(piece)
                if received > max_bytes:
                    raise too_large(max_bytes, option)
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)


def _left(deadline: float) -> float:
    """Return the seconds until the deadline. Raises `InvalidRequest` if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidRequest(_TOO_LONG)
    return left
