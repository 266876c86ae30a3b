"""`/invocations-bidirectional-stream`: SageMaker's InvokeEndpointWithBidirectionalStream, and any WebSocket client.

SageMaker opens a WebSocket on this path of the container, and passes a client's payloads on as messages. Each message is
the body of a request to `/invocations`, in any format that is accepted there. Its answer comes in messages: one for each
record of a stream, or one with the whole document. An error is a message, too: the document that `/invocations` answers.

A message ends the answer before it, whose last message is then `STOPPED`. An empty message does only that. So a client
can interrupt an answer, and knows which messages belong to the next one.

Source: "Container contract to support bidirectional streaming" in the SageMaker developer guide.
"""

from __future__ import annotations

import errno
import io
import logging
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask, Response, request
from websockets.frames import CloseCode

from lmi_handlers.apis.base import front_end_json
from lmi_handlers.apis.routes import JSON
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.web.access_control import BIDIRECTIONAL_STREAM, AccessControl
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.inner_request import HANDSHAKE, inner_environ
from lmi_handlers.web.web_socket import InvalidHandshake, WebSocket, is_utf8

STOPPED = front_end_json({"code": 499, "type": "Stopped", "message": "a later message has stopped this answer"})
"""The last message of an answer that was stopped."""

_INVOCATIONS = "/invocations"
_TCP_ESTABLISHED, _TCP_CLOSE = 1, 7  # in the first byte of Linux's struct tcp_info
_LINES = re.compile(rb"[^\n]*\n+|[^\n]+")
_EVENTS = re.compile(rb"[^\n]*(?:\n(?!\n)[^\n]*)*(?:\n\n|\Z)")  # .+? would take 40 ms per MB
_RECORDS = {"text/event-stream": _EVENTS, "application/jsonlines": _LINES, "application/jsonl": _LINES}
_NOT_HERE = "WebSockets need a server that passes on its connection, such as gunicorn"

logger = logging.getLogger(__name__)


def add_bidirectional_route(app: Flask, properties: ServingProperties) -> None:
    """Add the route, which asks `app` itself for the answers."""
    bodies: ArrivingBodies = app.extensions["lmi_bodies"]

    def view() -> Response:
        if "gunicorn.socket" not in request.environ:
            return _refusal(501, _NOT_HERE)
        environ = dict(request.environ)
        try:
            client = WebSocket(environ, bodies, properties.max_request_size, properties.client_timeout)
        except InvalidHandshake as refused:
            return _refusal(refused.status, str(refused), refused.headers)
        return Response(_Conversation(app, environ, client), direct_passthrough=True)

    for is_handshake in (True, False):  # Werkzeug's rules are for one or the other
        app.add_url_rule(
            BIDIRECTIONAL_STREAM,
            "bidirectional_stream",
            view,
            methods=["GET"],
            provide_automatic_options=False,
            websocket=is_handshake,
        )


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = front_end_json({"code": status, "type": "WebSocketRefused", "message": message})
    return Response(body, status, headers, content_type=JSON)


class _Conversation(Iterator[bytes]):
    """The response body that gunicorn iterates: it has no bytes, and speaks on the connection instead."""

    def __init__(self, app: Flask, environ: dict[str, Any], client: WebSocket) -> None:
        self._app = app
        self._access: AccessControl = app.extensions["lmi_access"]
        self._environ = environ
        self._client = client
        self._answer: _Answering | None = None

    def __next__(self) -> bytes:
        """Answer messages until the end, and then have gunicorn close the connection. Raises `ConnectionResetError`."""
        try:
            self._client.open()
            for message in self._client.messages():
                self._stop()
                if not self._access.has_valid_key(self._environ):
                    self._client.close(CloseCode.POLICY_VIOLATION, "the API key is no longer valid")
                    break
                if message:
                    self._answer = _Answering(self._app, self._environ, self._client, message)
                del message  # it may be large, and the next one may be far away
        finally:
            self._stop()
            self._client.close()
        raise ConnectionResetError(errno.ECONNRESET, "the WebSocket has ended")

    def _stop(self) -> None:
        if self._answer is not None:
            self._answer.stop()
            self._answer = None


class _Answering:
    """One message and its answer, which a thread of its own sends."""

    def __init__(self, app: Flask, environ: Mapping[str, Any], client: WebSocket, message: bytes) -> None:
        self._app = app
        self._client = client
        self._stopped = False
        self._message = io.BytesIO(message)
        self._environ = inner_environ(environ, _INVOCATIONS) | {
            "REQUEST_METHOD": "POST",
            "CONTENT_TYPE": environ.get("CONTENT_TYPE") or JSON,
            "CONTENT_LENGTH": str(len(message)),
            "wsgi.input": self._message,
            HANDSHAKE: environ,
            "gunicorn.socket": _Listening(self, environ["gunicorn.socket"]),
        }
        self._environ.pop("HTTP_TRANSFER_ENCODING", None)
        if "HTTP_ACCEPT" in environ:
            self._environ["HTTP_ACCEPT"] = environ["HTTP_ACCEPT"]
        client.set_busy(True)
        self._thread = threading.Thread(target=self._run, name="bidirectional-answer", daemon=True)
        self._thread.start()

    @property
    def is_wanted(self) -> bool:
        """True if the client still waits for the answer."""
        return not self._stopped and self._client.is_open

    def limit_writes(self, deadline: float) -> None:
        """Stop writing at the monotonic time `deadline`."""
        self._client.limit_writes(deadline)

    def stop(self) -> None:
        """End the answer if it has not ended, and wait until it has."""
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        try:
            complete = self._send()
            if not complete:
                self._tell(STOPPED, text=True)
        except _HasLeft:
            pass
        except Exception:
            logger.exception("a WebSocket's request was not answered")
            self._client.close(CloseCode.INTERNAL_ERROR, "the answer could not be completed")
        finally:
            self._client.limit_writes()
            self._client.set_busy(False)

    def _send(self) -> bool:
        """Send the answer. Return whether it is complete."""
        with self._message:  # a long answer does not keep a large message
            response = Response.from_app(self._app.wsgi_app, self._environ)
        is_empty = True
        try:
            mimetype = response.mimetype or ""
            pattern = _RECORDS.get(mimetype)
            is_text = mimetype.startswith("text/") or "json" in mimetype
            for chunk in response.iter_encoded():
                for record in [chunk] if pattern is None else pattern.findall(chunk):
                    if self._stopped:
                        return False
                    if record:
                        self._tell(record, text=is_text and is_utf8(record))
                        is_empty = False
            if is_empty and not self._stopped:  # the client waits for a message
                self._tell(b"", text=is_text)
            return not self._stopped
        finally:
            response.close()

    def _tell(self, data: bytes, *, text: bool) -> None:
        """Send a message. Raises `_HasLeft`."""
        try:
            self._client.send(data, text=text)
        except OSError as error:
            raise _HasLeft from error


class _HasLeft(Exception):
    """The client has left, or reads too slowly."""


class _Listening:
    """The connection as the request sees it. Whoever reads it knows whether the client has left."""

    family = socket.AF_INET

    def __init__(self, answer: _Answering, sock: Any) -> None:
        self._answer = answer
        self._sock = sock

    def getsockopt(self, level: int, option: int, length: int) -> bytes:  # noqa: ARG002  a socket's signature
        """Return the state that TCP_INFO has: "closed" once the answer is not wanted."""
        return bytes([_TCP_ESTABLISHED if self._answer.is_wanted else _TCP_CLOSE]).ljust(length, b"\0")

    def getsockname(self) -> Any:
        """Return the server's address."""
        return self._sock.getsockname()

    def limit_writes(self, deadline: float) -> None:
        """Stop writing at the monotonic time `deadline`."""
        self._answer.limit_writes(deadline)
