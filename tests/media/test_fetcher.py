"""Images are fetched over https from the address that was checked, within limits."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
import trustme
from picture_server import PictureServer, picture

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.media.allowed import Location
from lmi_handlers.media.fetcher import fetch

pytestmark = pytest.mark.usefixtures("trusted")


KIND = {"accept": "image/*", "option": "max_image_bytes"}


def get(
    server: PictureServer, path: str, *, host: str = "localhost", seconds: float = 60, max_bytes: int = 1000
) -> bytes:
    location = Location(host, server.server_port, path)
    return fetch(location, ["127.0.0.1"], **KIND, max_bytes=max_bytes, deadline=time.monotonic() + seconds)


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/redirect", "redirects are not followed"),
        ("/missing", "returned status 404"),
        ("/endless", "more than 1000 bytes"),
        ("/cut", "cannot be fetched"),
    ],
)
def test_fetches_that_fail(pictures: PictureServer, path: str, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause):
        get(pictures, path)


def test_the_host_name_is_not_resolved_again(pictures: PictureServer) -> None:
    """No name server knows this name. The connection goes to the checked address, with the name in the certificate."""
    assert get(pictures, "/red.png", host="pictures.example") == picture()
    assert f"pictures.example:{pictures.server_port}" in pictures.hosts


def test_a_certificate_for_another_name_is_rejected(pictures: PictureServer) -> None:
    with pytest.raises(InvalidRequest, match="cannot be fetched: SSLCertVerificationError"):
        get(pictures, "/red.png", host="other.example")


@pytest.mark.parametrize("path", ["/slow", "/slow-head", "/slow-chunks"])
def test_a_slow_host_cannot_delay_a_request_past_its_deadline(pictures: PictureServer, path: str) -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        get(pictures, path, seconds=0.5)


def test_a_host_that_does_not_answer_the_tls_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        location = Location("localhost", silent.getsockname()[1], "/")
        with pytest.raises(InvalidRequest, match="too long"):
            fetch(location, ["127.0.0.1"], **KIND, max_bytes=10, deadline=time.monotonic() + 0.5)


def test_the_next_address_is_tried_if_one_is_unreachable(pictures: PictureServer) -> None:
    location = Location("localhost", pictures.server_port, "/red.png")
    deadline = time.monotonic() + 60
    nobody = "127.1.2.3"  # nodes of other tests' Ray clusters have 127.0.0.2 and so on
    assert fetch(location, [nobody, "127.0.0.1"], **KIND, max_bytes=1000, deadline=deadline) == picture()
    with pytest.raises(InvalidRequest, match="no connection to the host"):
        fetch(location, [nobody], **KIND, max_bytes=1000, deadline=deadline)


def test_the_systems_certificates_are_used(
    pictures: PictureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture server is not trusted if its authority is not among them."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(InvalidRequest, match="SSLCertVerificationError"):
        get(pictures, "/red.png")
