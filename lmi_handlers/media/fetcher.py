"""One GET over https, to an address that has been checked and no other.

The name's server is asked once, by `AllowedMedia.resolve`; the connection is made to what it said then, and the
certificate must be the name's. No redirect is followed, and no proxy of the environment is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from lmi_handlers import __version__
from lmi_handlers.errors import InvalidRequest
from lmi_handlers.media.allowed import HTTPS_PORT, Location

_CONNECT_TIMEOUT = 3.0
_OK = 200
_REDIRECTS = range(300, 400)
_CHUNK = 1 << 16


def fetch(location: Location, addresses: list[str], *, max_bytes: int, deadline: float) -> bytes:
    """Return the body, from the first address that can be reached, by `deadline` on the monotonic clock.

    Raises `InvalidRequest`, also for more than `max_bytes`.
    """
    for address in addresses:
        try:
            return b"".join(_download(location, address, max_bytes, deadline))
        except (NewConnectionError, ConnectTimeoutError):  # noqa: PERF203  the next one
            continue
        except HTTPError as error:
            raise InvalidRequest(f"cannot be fetched: {type(error).__name__}") from error
    raise InvalidRequest("cannot be fetched: the host cannot be reached")


def _download(location: Location, address: str, max_bytes: int, deadline: float) -> Iterator[bytes]:
    host, port = location.host, location.port
    with urllib3.HTTPSConnectionPool(
        address,
        port,
        assert_hostname=host,
        server_hostname=host,
        timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT, read=_left(deadline)),
    ) as pool:
        response = pool.urlopen(
            "GET",
            location.target,
            headers={
                "Host": host if port == HTTPS_PORT else f"{host}:{port}",
                "User-Agent": f"lmi-handlers/{__version__}",
                "Accept": "image/*",
                "Accept-Encoding": "identity",
            },
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            yield from _body(response, max_bytes, deadline)
        finally:
            response.close()


def _body(response: urllib3.BaseHTTPResponse, max_bytes: int, deadline: float) -> Iterator[bytes]:
    if response.status in _REDIRECTS:
        raise InvalidRequest("leads to another address, and redirects are not followed")
    if response.status != _OK:
        raise InvalidRequest(f"cannot be fetched: the host answers {response.status}")
    received = 0
    while piece := response.read1(_CHUNK):
        received += len(piece)
        if received > max_bytes:
            raise InvalidRequest(f"has more than {max_bytes} bytes (option.max_image_bytes)")
        _left(deadline)
        yield piece


def _left(deadline: float) -> float:
    """Seconds until the deadline. Raises `InvalidRequest` where it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidRequest("cannot be fetched: it takes too long")
    return left
