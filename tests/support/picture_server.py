"""An HTTPS server for images, and for the answers that a malicious host may send instead. Also makes test images."""

from __future__ import annotations

import http.server
import io
import ssl
import struct
import time
import zlib
from pathlib import Path

import PIL.Image
import trustme

RED = (200, 16, 8)


def picture(size: tuple[int, int] = (4, 3), form: str = "PNG", **options: object) -> bytes:
    data = io.BytesIO()
    PIL.Image.new("RGB", size, RED).save(data, form, **options)
    return data.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of black pixels, a thousand times smaller than its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Pictures(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: PictureServer = self.server  # type: ignore[assignment]
        server.hosts.append(self.headers["Host"])
        match self.path.partition("?")[0]:
            case "/red.png":
                self._answer(200, picture())
            case "/redirect":
                self._answer(302, b"", Location=f"https://localhost:{server.server_port}/red.png")
            case "/endless":
                self.send_response(200)
                self.end_headers()
                while True:
                    self.wfile.write(b"x" * 65536)
            case "/slow":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                for _ in range(1000):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.05)
            case "/slow-head":
                self._drip(b"HTTP/1.1 200 OK\r\nX: ")
            case "/slow-chunks":
                self._drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")
            case "/cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"x")
                self.close_connection = True
            case "/page":
                self._answer(200, b"<html>no picture</html>")
            case _:
                self._answer(404, b"")

    def _drip(self, head: bytes) -> None:
        """Send single bytes slowly, forever."""
        self.wfile.write(head)
        while True:
            self.wfile.write(b"x")
            self.wfile.flush()
            time.sleep(0.05)

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class PictureServer(http.server.ThreadingHTTPServer):
    """`authority` is the certificate to trust for "localhost" and "pictures.example". `hosts` has each request's Host."""

    daemon_threads = True

    def __init__(self, authority: Path) -> None:
        super().__init__(("127.0.0.1", 0), Pictures)
        self.authority = authority
        self.hosts: list[str] = []
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(str(authority))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issuer.issue_cert("localhost", "pictures.example").configure_cert(context)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: tests include clients that disconnect early."""
