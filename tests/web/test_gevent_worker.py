"""Connections that a web worker has accepted just before it ends."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import socket
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.sock import TCPSocket
from lmi_handlers.web.body_reader import BodyReader
from lmi_handlers.web.gevent_worker import ClientLimitingWorker

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]

config = Config()
config.set("pre_request", lambda worker, request: BodyReader(request))
ClientLimitingWorker.client_timeout = 60.0
worker = ClientLimitingWorker(0, 0, [TCPSocket(("127.0.0.1", 0), config, None)], None, 60, config, Logger(config))
worker.wsgi = application
worker.patch()
[listener] = worker.sockets
client = socket.create_connection(listener.getsockname())
client.sendall(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
accepted, address = listener.accept()
listener.close()
worker.handle(listener, accepted, address)
print(client.recv(1000).decode())
"""


def test_a_connection_accepted_before_the_listener_closed_is_answered() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.startswith("HTTP/1.1 200 OK"), run.stderr
    assert run.stdout.rstrip().endswith("ok"), run.stderr
