"""`lmi transform` in a process of its own, and a container that is not ours for it to call."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from serving import ENVIRON


def transform(
    source: object, target: Path | str, *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `lmi transform`."""
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.commands.cli",
        "transform",
        "--input",
        str(source),
        "--output",
        str(target),
    ]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=ENVIRON | (environ or {}), timeout=120, check=False
    )


def write_lines(path: Path, records: Sequence[object]) -> Path:
    """Write a file of JSON lines. Bytes are written as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in records)
    )
    return path


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Container(http.server.ThreadingHTTPServer):
    """Answers `/invocations` only: CSV rows with their lengths, and a body with the word "bad" with a 500, "gone"
    with a 503, and "hang" never.

    The first requests are answered with the statuses in `failures`. `bodies` has all bodies in the order of arrival.
    JSON lines are answered line by line, the first record of the first request with an error. `/ping` says `loading` times
    that the model loads. Text is answered as `text`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[bytes] = []
        self.failures: list[int] = []
        self.loading = 0
        self.text = b""
        self.released = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Container

    def do_GET(self) -> None:
        self.server.loading -= 1
        self._answer(503 if self.server.loading >= 0 else 404, b"", "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)
        if self.server.failures:
            self._answer(self.server.failures.pop(0), b"<html>not now</html>", "text/html")
        elif b"gone" in body:
            self._answer(503, b"", "text/plain")
        elif b"hang" in body:
            self.server.released.wait()
        elif b"bad" in body:
            self._answer(500, b"ValueError: bad", "text/plain")
        elif self.headers["Content-Type"] == "text/csv":
            self._answer(200, b"".join(b"%d\n" % len(line.split(b",")) for line in body.splitlines()), "text/csv")
        elif self.headers["Content-Type"] == "application/jsonlines":
            lines = [b'{"echo":%s}' % line for line in body.splitlines()]
            if len(self.server.bodies) == 1:
                lines[0] = b'{"error":"the engine has crashed","code":503}'
            self._answer(200, b"".join(line + b"\n" for line in lines), "application/jsonlines")
        elif self.headers["Content-Type"] == "text/plain":
            self._answer(200, self.server.text, "text/plain")
        else:
            self._answer(200, b"<%d>" % len(body), "application/octet-stream")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as in the base class
        """Tests read `bodies`."""


@contextlib.contextmanager
def container() -> Iterator[Container]:
    """A running container."""
    server = Container()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
