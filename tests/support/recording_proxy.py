"""A proxy that records what goes through it, byte for byte, and may give answers of its own instead."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from serving import Server

_OF_CONNECTION = ("connection", "keep-alive", "transfer-encoding")


class Exchanged(NamedTuple):
    """The body of a POST request and of its answer, as far as that has been passed on."""

    path: str
    sent: bytes
    received: bytearray


class RecordingProxy(ThreadingHTTPServer):
    """Forwards requests to a server. `answers` has bodies that it gives itself, by path, with their content type.

    With `promised`, these break off: their heads promise so many bytes.
    """

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = server
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.recorded: list[Exchanged] = []
        self.answers: dict[str, tuple[str, bytes]] = {}
        self.promised: int | None = None


@contextlib.contextmanager
def recording_proxy(server: Server) -> Iterator[RecordingProxy]:
    """Run a proxy in front of `server`."""
    proxy = RecordingProxy(server)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RecordingProxy

    def do_GET(self) -> None:  # http.server's name
        self._forward()

    def do_POST(self) -> None:  # http.server's name
        self._forward()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        """Log nothing."""

    def _forward(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        received = bytearray()  # a client that has a part finds it here
        if self.command == "POST":
            self.server.recorded.append(Exchanged(path, sent, received))
        if path in self.server.answers:
            kind, body = self.server.answers[path]
            length = [] if self.server.promised is None else [("Content-Length", str(self.server.promised))]
            self._begin(200, [("Content-Type", kind), *length])
            received += body
            self.wfile.write(body)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, sent, dict(self.headers))
            answer = connection.getresponse()
            self._begin(answer.status, answer.getheaders())
            while part := answer.read1(1 << 16):
                received += part
                self.wfile.write(part)

    def _begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        self.end_headers()
