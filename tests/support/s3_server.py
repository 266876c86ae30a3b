"""A real S3 server (moto's, in a process of its own), and a proxy before it that breaks answers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import boto3
from boto_files import read_once
from serving import free_port
from waiting import wait_until

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Fault = Literal["500", "denied", "expired", "reset", "truncate", "corrupt", "slow"]

_ERRORS: dict[str, tuple[int, str]] = {
    "500": (500, "InternalError"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
}
_SLOW_SECONDS = 0.2


class S3Server:
    """moto's server. `environ` makes boto3 use the proxy before it; `client` uses the server itself."""

    def __init__(self) -> None:
        read_once()
        port = free_port()
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-p", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: _listens(port), timeout=120)
        self.client: S3Client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.proxy = BreakingProxy(port)
        self.environ = {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.proxy.server_port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
        }

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        """Make a bucket with files: key -> content."""
        self.client.create_bucket(Bucket=bucket)
        for key, data in files.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=data)

    def stop(self) -> None:
        self.client.close()
        self.proxy.shutdown()
        self.proxy.server_close()
        self._process.kill()
        self._process.wait()


@dataclass
class _Plan:
    fault: Fault
    applies: Callable[[str, str], bool]
    times: int


class BreakingProxy(http.server.ThreadingHTTPServer):
    """Passes requests on, and breaks the answers that `breaking` names. `gets` has the paths of the objects read."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.gets: list[str] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        """Is called with the method and path of each request before it is passed on."""
        self._plans: list[_Plan] = []
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @contextlib.contextmanager
    def breaking(self, fault: Fault, part: str = "", *, method: str = "GET", times: int = 1_000_000) -> Iterator[None]:
        """Break the first `times` answers to requests with this method and `part` in their path."""
        plan = _Plan(fault, lambda verb, path: verb == method and part in path, times)
        self._plans.append(plan)
        try:
            yield
        finally:
            self._plans.remove(plan)

    def fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for plan in self._plans:
                if plan.times and plan.applies(method, path):
                    plan.times -= 1
                    return plan.fault
        return None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed closes its connections."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BreakingProxy

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.before(self.command, path)
        if self.command == "GET" and "list-type=" not in self.path:
            self.server.gets.append(path.lstrip("/"))
        fault = self.server.fault(self.command, self.path)
        if fault in _ERRORS:
            self._refuse(*_ERRORS[fault])
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            upstream.request(self.command, self.path, body=sent or None, headers=dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
        finally:
            upstream.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "server", "date", "transfer-encoding"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._send(body, fault)

    do_HEAD = do_PUT = do_GET  # noqa: N815

    def _send(self, body: bytes, fault: Fault | None) -> None:
        half = len(body) // 2
        if fault == "corrupt":
            body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        elif fault == "slow":
            self.wfile.write(body[:half])
            self.wfile.flush()
            time.sleep(_SLOW_SECONDS)
            body = body[half:]
        elif fault in ("truncate", "reset"):
            self.wfile.write(body[:half])
            self.wfile.flush()
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>so says the test</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
