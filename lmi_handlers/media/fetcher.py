"""One GET over https, to an address that has been checked and no other.

The name's server is asked once, by `AllowedMedia.resolve`; the connection is made to what it said then, and the
certificate must be the name's. No redirect is followed, and no proxy of the environment is asked.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator

from lmi_handlers import __version__
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.media.allowed import HTTPS_PORT, Location

_CONNECT_TIMEOUT = 3.0
_OK = 200
_REDIRECTS = range(300, 400)
_CHUNK = 1 << 16
_TOO_LONG = "cannot be fetched: it takes too long"


def fetch(location: Location, addresses: list[str], *, max_bytes: int, deadline: float) -> bytes:
    """Return the body, from the first address that can be reached, by `deadline` on the monotonic clock.

    Raises `InvalidRequest`, also for more than `max_bytes`.
    """
    for address in addresses:
        try:
            timeout = min(_CONNECT_TIMEOUT, _left(deadline))
            connection = socket.create_connection((address, location.port), timeout)
        except OSError:
            continue
        with _ended_at(deadline, connection) as expired, connection:
            try:
                body = b"".join(_download(connection, location, max_bytes))
            except (OSError, http.client.HTTPException) as error:
                reason = _TOO_LONG if expired.is_set() else f"cannot be fetched: {type(error).__name__}"
                raise InvalidRequest(reason) from error
            if expired.is_set():
                raise InvalidRequest(_TOO_LONG)
            return body
    raise InvalidRequest("cannot be fetched: the host cannot be reached")


@contextlib.contextmanager
def _ended_at(deadline: float, connection: socket.socket) -> Iterator[threading.Event]:
    """Cut the connection at the deadline, whatever waits for it then: a host may send a byte now and then for ever."""
    control = connection.dup()  # the connection itself may be inside of TLS by then
    expired = threading.Event()

    def cut() -> None:
        expired.set()
        with contextlib.suppress(OSError):  # the host may have been first
            control.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(deadline - time.monotonic(), cut)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        control.close()


def _download(connection: socket.socket, location: Location, max_bytes: int) -> Iterator[bytes]:
    connection.settimeout(None)  # there is a deadline for all of it
    with ssl.create_default_context().wrap_socket(connection, server_hostname=location.host) as secure:
        exchange = http.client.HTTPConnection(location.host, location.port)
        exchange.sock = secure  # which it then does not make itself
        name = location.host if location.port == HTTPS_PORT else f"{location.host}:{location.port}"
        headers = {"Host": name, "User-Agent": f"lmi-handlers/{__version__}", "Accept": "image/*"}
        exchange.request("GET", location.target, headers=headers | {"Connection": "close"})
        with exchange.getresponse() as response:
            if response.status in _REDIRECTS:
                raise InvalidRequest("leads to another address, and redirects are not followed")
            if response.status != _OK:
                raise InvalidRequest(f"cannot be fetched: the host answers {response.status}")
            received = 0
            while piece := response.read1(_CHUNK):
                received += len(piece)
                if received > max_bytes:
                    raise InvalidRequest(f"has more than {max_bytes} bytes (option.max_image_bytes)")
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)


def _left(deadline: float) -> float:
    """Seconds until the deadline. Raises `InvalidRequest` where it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidRequest(_TOO_LONG)
    return left
