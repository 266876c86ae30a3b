"""gunicorn's gevent worker, with time limits on clients. `gunicorn_conf` selects it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import resource
import time
from typing import Any

# Import this before any module with log handlers, whose locks become gevent's: at exit, modules are torn down in
# reverse order of import.
import gevent.thread  # type: ignore[import-not-found]  # noqa: F401  the stubs leave it out
from gunicorn import util
from gunicorn.workers.ggevent import GeventWorker

from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.plugins import installed
from lmi_handlers.web.client_socket import ClientSocket, HeadTimeout, Limits, Waiting

_MARGIN = 512
"""Most extra connections above `worker_connections`, for those that were told to end but have not yet."""


class _Listener:
    """A listener that knows its address after it has been closed.

    A worker that ends closes it, and connections that it accepted just before are handled only then: gunicorn, which asks
    the listener for its address first, would close them without an answer.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._address = sock.getsockname()

    def getsockname(self) -> Any:
        """Return the address."""
        return self._address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class ClientLimitingWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no types
    """Applies the limits of `ClientSocket` to every connection, and always has room for a new one.

    At `worker_connections`, the connection that has waited longest for its client is closed: one that is idle, half-way
    through sending its request, or not reading its answer. Requests that wait for the engine are not affected, nor are
    those that have arrived but were not read yet. If there is nothing else, new connections wait until they are accepted.
    """

    client_timeout: float
    """Set by gunicorn's configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: Waiting = {}
        self._open = 0
        self._listeners: dict[Any, _Listener] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.worker_connections += min(_MARGIN, files // 4)

    def init_process(self) -> None:
        # They do not change any more, and gunicorn would look up two dozen of them for each request, in two calls each.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        super().init_process()

    def patch(self) -> None:
        """Patch the standard library. gevent looks for plug-ins 25 times and would read all packages' metadata each time."""
        read_again = importlib.metadata.entry_points
        importlib.metadata.entry_points = installed  # type: ignore[assignment]  # gevent only passes a group
        try:
            super().patch()
        finally:
            importlib.metadata.entry_points = read_again
        self._listeners = {sock: _Listener(sock) for sock in self.sockets}

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        limits = Limits(self.client_timeout, self.cfg.keepalive)
        self._open += 1
        if self._open > self.cfg.worker_connections:
            self._make_room()
        try:
            super().handle(self._listeners[listener], ClientSocket(client, limits, self._waiting), addr)
        finally:
            self._open -= 1

    def timeout_ctx(self) -> contextlib.AbstractContextManager[None]:
        """Return a null context: `ClientSocket` already limits the time for reading a head."""
        return contextlib.nullcontext()

    def handle_request(self, listener_name: Any, req: Any, sock: ClientSocket, addr: Any) -> Any:
        """Answer a request whose head has been read."""
        sock.begin_request()
        try:
            return super().handle_request(listener_name, req, sock, addr)
        finally:
            sock.end_request(complete=req.body.reader.complete)
            if req.unreader.buf.tell() or sock.has_input():  # the next request has come early: reading it will not wait
                give_way()

    def is_already_handled(self, respiter: Any) -> bool:
        """Called by gunicorn with each response body. Another one than ours may be made of ours, by WSGI middleware."""
        if hasattr(type(respiter), "share_turns"):
            respiter.share_turns()
        return super().is_already_handled(respiter)  # type: ignore[no-any-return]

    def handle_error(self, req: Any, client: ClientSocket, addr: Any, exc: BaseException) -> None:
        """Answer a connection that sent no valid request."""
        if isinstance(exc, LMIError):
            return  # from the unread rest of a body; its request has been answered
        client.expect_rest()
        if isinstance(exc, HeadTimeout):
            with contextlib.suppress(OSError):
                util.write_error(client, 408, "Request Timeout", "The request's head did not arrive in time.")
            return
        super().handle_error(req, client, addr, exc)

    def cut_silent(self, seconds: float) -> None:
        """Cut off clients that have neither sent nor read anything for `seconds` during a request."""
        now = time.monotonic()
        for sock, since in list(self._waiting.items()):
            if sock.in_request and now - since >= seconds:
                sock.give_up()

    def _make_room(self) -> None:
        oldest = next((sock for sock in self._waiting if not sock.has_input()), None)
        if oldest is not None:
            del self._waiting[oldest]  # it may take a moment to notice
            oldest.hang_up()
