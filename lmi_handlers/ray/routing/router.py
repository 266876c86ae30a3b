"""Routes the requests of one replica: to its own server, or to another replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lmi_handlers.ray.bodies import Body, has_body, read_head
from lmi_handlers.ray.forwarding import answer_error, answer_no_server, ask, relay, url_of
from lmi_handlers.ray.gate import taking
from lmi_handlers.ray.routing.keys import HEAD, By, holder, key_of, model_of
from lmi_handlers.ray.routing.members import Member
from lmi_handlers.ray.server import HOST, session_of

if TYPE_CHECKING:  # it imports Ray
    from lmi_handlers.ray.routing.membership import Membership

_PASSED_ON = b"x-lmi-passed-on"
"""Header of a request that another replica has passed on, with the name of the replica that should answer it."""

_CONNECT_SECONDS = 1.0

_OTHER_IS_GONE = "the replica that should answer this request has ended"

_NOT_KNOWN = "it is not known at the moment whether the replica with this session has ended"

_MISDIRECTED = 421
"""RFC 9110: the address is that of another replica by now."""

_NOT_HERE = "this replica is not the one that the request was passed on to"


class Routing(msgspec.Struct, frozen=True):
    """Settings of routing. `model` is the name of the only model, which says nothing about a request."""

    by: By = "least"
    model: str = ""


def is_behind_haproxy(environ: Mapping[str, str]) -> bool:
    """Tell whether requests come from HAProxy: through Ray's Python proxy, no replica can be asked for by address."""
    return environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


class NotKnown(Exception):
    """The replica with the request's session may be one that this one has not heard of."""


class Router:
    """Says where requests go."""

    def __init__(self, routing: Routing, membership: Membership) -> None:
        self.membership = membership
        self.table = membership.table
        self._routing = routing
        self._session: aiohttp.ClientSession | None = None

    @property
    def head(self) -> int:
        """Number of bytes at the beginning of a body that decide its route."""
        return 0 if self._routing.by == "least" else HEAD

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to other replicas."""
        if self._session is None:
            self._session = session_of(aiohttp.TCPConnector(limit=0, keepalive_timeout=15), _CONNECT_SECONDS)
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def other(self, path: str, scope: Scope, head: bytes) -> Other | None:
        """Return the other replica that should answer a request, None if it is this one. Raises `NotKnown`."""
        headers = dict(scope["headers"])
        if (name := holder(headers)) is not None:
            return None if name == self.table.name else await self._with_session(name)
        if not self.head or scope["method"] != "POST":
            return None
        model = model_of(path, scope["query_string"].decode("latin-1"), headers, head)
        key = key_of(self._routing.by, b"" if model == self._routing.model.encode() else model, head)
        member = None if key is None else self.table.choose(key)
        return None if member is None else Other(member)

    async def _with_session(self, name: str) -> Other | None:
        """Return the replica with this name, or None if it has ended: then any other one can say so."""
        if self.table.get(name) is None and not await self.membership.exchange():
            raise NotKnown
        member = self.table.get(name)
        return None if member is None else Other(member, only=True)


class Other(msgspec.Struct, frozen=True):
    """Another replica. With `only`, no other can answer, because this one has the request's session."""

    member: Member
    only: bool = False


class Routed(Response):
    """The answer of this replica's server, or of another replica's."""

    def __init__(self, session: aiohttp.ClientSession, router: Router, path: str) -> None:
        super().__init__()
        self._session = session
        self._path = path
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI call."""
        if scope.get("server"):
            await self._router.membership.listens_on(scope["server"][1])
        passed_on = next((value for name, value in scope["headers"] if name == _PASSED_ON), None)
        if passed_on not in (None, self._router.table.name.encode()):
            await answer_error(_MISDIRECTED, _NOT_HERE, scope, receive, send)
            return
        head, body = (b"", None)
        if has_body(scope):
            head, body = await read_head(taking(scope, receive), self._router.head)
        try:
            other = None if passed_on is not None else await self._router.other(self._path, scope, head)
        except NotKnown:
            await answer_error(503, _NOT_KNOWN, scope, receive, send)
            return
        if other is not None and await self._pass_on(other, scope, body, receive, send):
            return
        with self._counted(self._router.table.name):
            try:
                answer = await ask(self._session, url_of(HOST, self._path, scope), scope, body)
            except aiohttp.ClientConnectionError:
                await answer_no_server(scope, receive, send)
                return
            await relay(answer, scope, send)

    async def _pass_on(self, other: Other, scope: Scope, body: Body, receive: Receive, send: Send) -> bool:
        """Pass a request on, and return whether it has been answered: if not, this replica can do that."""
        member = other.member
        url = url_of(member.host, scope.get("root_path", "") + self._path, scope, member.port)
        passed_on = {**scope, "headers": [*scope["headers"], (_PASSED_ON, member.name.encode())]}
        with self._counted(member.name):
            try:
                answer = await ask(self._router.session, url, passed_on, body)
            except aiohttp.ClientConnectionError as error:
                self._router.table.forget(member.name)
                if not other.only and isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
                    return False  # nothing was sent
                await answer_error(503, _OTHER_IS_GONE, scope, receive, send)
                return True
            if answer.status in (503, _MISDIRECTED):
                self._router.table.forget(member.name)
                if not other.only and (body is None or isinstance(body, bytes)):
                    answer.release()
                    return False
            await relay(answer, scope, send)
            return True

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._router.table.begin(name)
        try:
            yield
        finally:
            self._router.table.end(name)
