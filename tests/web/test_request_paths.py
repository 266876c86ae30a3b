"""However a client writes a path, all rules of all servers read the same: none lets it pass without the key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from model_store import StoreServer
from raw_http import read_to_end
from serving import API_KEY, Server, free_port
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lmi_handlers.core.request_path import BadPath, read_path
from lmi_handlers.ray.answering import answer_to
from lmi_handlers.ray.gate import Gate
from lmi_handlers.ray.routing.router import Router, Routing
from lmi_handlers.ray.routing.table import Table
from lmi_handlers.ray.server import HOST, session_of

KEY = f"x-api-key: {API_KEY}"
PAGE = "Accept: text/html"

EQUAL = (
    "/{rest}?x",
    "//{rest}",
    "///{rest}",
    "/%2f{rest}",
    "/%2F/{rest}",
    "http://localhost/{rest}",
    "https://user@elsewhere:1//{rest}",
    "/{rest}#x",
)
"""Ways to write `/{rest}`. Some more are made of its letters."""

REFUSED = (
    "/./{rest}",
    "/x/../{rest}",
    "/%2e%2e/{rest}",
    "/x%2f..%2f{rest}",
    "/{rest}/.",
    "/{rest}/%2e.",
    "/%5c{rest}",
    "/..%5c{rest}",
    "/{rest}%00",
    "/{rest}%0a",
    "/%0d{rest}",
    "/{rest}%7f",
    "/{rest}%c2%85",
    "/{rest}%ff",
    "/%c0%af{rest}",
    "1x://host/{rest}",
    "://{rest}",
    "\\{rest}",
    "{rest}",
    "x:{rest}",
    "*",
    "",
)
"""No path, or one with several readings: what the HTTP server does not refuse with status 400 is not found."""

OTHERS = ("/{rest};x", "/{rest}%23x", "/{rest}%3fx", "/%252e%252e/{rest}", "/%252f{rest}", "/x/{rest}", "/.{rest}")
"""Other paths, which are no routes."""

READ = ("/adapters", "/models", "/models/m", "/models/m/adapters", "/console/data/state")
"""What nobody may read without the key."""

OPEN = (*READ, "/v1/models", "/v1/models/m", "/ping", "/console/main.js", "/docs", "/docs/page.js", "/nothing", "/")


def spellings(path: str) -> Iterator[str]:
    """Ways to write a path that mean the same."""
    yield from (form.format(rest=path[1:]) for form in EQUAL)
    yield path.replace("/", "//")
    yield path[0] + path[1:].replace("/", "%2f").replace("a", "%61").replace("o", "%6F")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of all servers, by what they are. All need the key."""
    directory, port, management = tmp_path_factory.mktemp("paths"), free_port(), free_port()
    path = tmp_path_factory.mktemp("s") / "s"
    environ = {"API_KEY": API_KEY, "OPTION_CONSOLE": "true"}
    binds = {"GUNICORN_CMD_ARGS": f"--bind unix:{path} --bind 127.0.0.1:{port}"}
    with contextlib.ExitStack() as stack:
        plain = Server(
            directory / "m", "option.rolling_batch=echo\n", "--local-runtime", port=port, environ=environ | binds
        )
        stack.callback(plain.stop)
        addresses = {"LMI_MANAGEMENT_ADDRESS": f"127.0.0.1:{management}"}
        many = StoreServer(directory / "many", {"m": "option.rolling_batch=echo\n"}, environ=environ | addresses)
        stack.callback(many.stop)
        plain.wait_ready()
        many.wait_ready()
        alone, several = (stack.enter_context(on_ray(path, None, is_alone=alone)) for alone in (True, False))
        routed = stack.enter_context(on_ray(path, router()))
        ports = {"plain": port, "many": many.port, "management": management}
        yield ports | {"ray": alone, "several": several, "routed": routed}


def router() -> Router:
    """Of a replica that knows no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, when it is imported
        from lmi_handlers.ray.routing.membership import Membership

    return Router(Routing(by="prefix"), Membership(Table("a"), lambda: True))


@contextlib.contextmanager
def on_ray(path: Path, router: Router | None, *, is_alone: bool = False) -> Iterator[int]:
    """Yield the port of what runs in a replica, without Ray: its HTTP server, our gate, and what answers requests."""

    async def no_metrics() -> Response:
        return Response("of all replicas")

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sessions: list[aiohttp.ClientSession] = []

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if not sessions:
                sessions.append(session_of(aiohttp.UnixConnector(str(path)), 10.0))
            answer = await answer_to(Request(scope, receive), sessions[0], no_metrics, router, is_alone=is_alone)
            await answer(scope, receive, send)

        async def run() -> None:
            await server.serve(sockets=[sock])
            for session in sessions:
                await session.close()

        server = uvicorn.Server(uvicorn.Config(Gate(application), lifespan="off", log_config=None))
        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


def ask(port: int, target: str, *fields: str, method: str = "GET") -> tuple[int, bytes]:
    """Send a request, and return status and body."""
    lines = (f"{method} {target} HTTP/1.1", f"Host: {HOST}", "Connection: close", "Content-Length: 0", *fields)
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
    head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


NAMES = pytest.mark.parametrize("name", ["plain", "many", "management", "ray", "several", "routed"])


@NAMES
@pytest.mark.parametrize("path", READ)
def test_nothing_is_read_without_the_key(servers: dict[str, int], name: str, path: str) -> None:
    port = servers[name]
    assert ask(port, path)[0] == 401
    for spelling in spellings(path):
        for method in ("GET", "HEAD"):
            assert ask(port, spelling, method=method)[0] == 401, spelling
        assert ask(port, spelling, KEY)[0] in (200, 404), spelling
    for form in OTHERS:
        assert ask(port, form.format(rest=path[1:]))[0] in (401, 404), form


@NAMES
@pytest.mark.parametrize("path", ["/adapters", "/models", "/invocations", "/predictions/m", "/v1/load_lora_adapter"])
def test_nothing_is_changed_without_the_key_and_nothing_on_one_replica_only(
    servers: dict[str, int], name: str, path: str
) -> None:
    expected = 501 if name in ("several", "routed") and path not in ("/invocations", "/predictions/m") else 401
    for spelling in (path, *spellings(path)):
        assert ask(servers[name], spelling, method="POST")[0] == expected, spelling


@NAMES
@pytest.mark.parametrize("path", OPEN)
def test_each_spelling_is_answered_as_the_path_is(servers: dict[str, int], name: str, path: str) -> None:
    port = servers[name]
    for fields in ((KEY,), (KEY, PAGE)):
        expected = without_times(ask(port, path, *fields))
        assert expected[0] in (200, 404)
        for spelling in spellings(path):
            assert without_times(ask(port, spelling, *fields)) == expected, spelling


@NAMES
@pytest.mark.parametrize("form", REFUSED)
def test_a_path_with_several_readings_is_refused(servers: dict[str, int], name: str, form: str) -> None:
    """Each path with one method: with another one in the next form."""
    methods = ("GET", "POST", "OPTIONS", "DELETE")
    for number, path in enumerate(("/adapters", "/models/m/invoke", "/console/data/state", "/docs")):
        method = methods[(number + REFUSED.index(form)) % len(methods)]
        status, body = ask(servers[name], form.format(rest=path[1:]), KEY, PAGE, method=method)
        assert status == (404 if b'"code"' in body else 400), (path, method)
        assert not body.startswith(b"{") or b" of a request must " in body


def without_times(answer: tuple[int, bytes]) -> tuple[int, bytes]:
    """The status, and how the body begins: before all that differs between two answers."""
    return answer[0], answer[1][:8]


@pytest.mark.parametrize(
    ("octets", "path"),
    [
        ("/invocations", "/invocations"),
        ("", "/"),
        ("//", "/"),
        ("//v1//models/", "/v1/models/"),
        ("/models/a b.c..d...e/invoke", "/models/a b.c..d...e/invoke"),
        ("/.well-known", "/.well-known"),
        ("/...", "/..."),
        ("/v1/models/s3://bucket/mod\xc3\xa8le", "/v1/models/s3:/bucket/mod\xc3\xa8le"),
    ],
)
def test_what_rules_see(octets: str, path: str) -> None:
    assert read_path(octets) == path


@given(st.text(st.sampled_from("/.a\\\0\n\x7f\x80\xc2\xc3\xa8*:"), max_size=12))
def test_a_path_has_one_reading_or_none(octets: str) -> None:
    with contextlib.suppress(BadPath):
        path = read_path(octets)
        segments = path.split("/")
        assert segments.pop(0) == ""
        assert "" not in segments[:-1]
        assert {".", ".."}.isdisjoint(segments)
        assert path.replace("/", "") == octets.replace("/", "")
        assert not set(path.encode("latin-1").decode()) & set("\\\0\n\x7f\x80")
        assert read_path(path) == path
