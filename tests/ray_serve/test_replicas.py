"""A real Ray with one replica, started by `lmi ray serve`: the same bytes as the server alone, aborts, and draining."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests
from raw_http import connect, dechunked, read_to_end, request
from serving import Server, free_port

pytestmark = [pytest.mark.long, pytest.mark.needs("ray")]

PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\nmax_request_size=100000\n"
    "option.echo_tokens_per_second=200\n"
)
TEXT = "The quick brown fox jumps over the lazy dog. "
MESSAGES = [{"role": "user", "content": "Hi"}]


def posted(path: str, **body: Any) -> Any:
    return pytest.param("POST", path, {"json": body}, id=path + ("?stream" if "stream" in str(body) else ""))


REQUESTS = [
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 8, "details": True}),
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 8}, stream=True),
    posted("/generate", inputs=TEXT, parameters={"max_new_tokens": 8, "details": True}),
    posted("/generate_stream", inputs=TEXT, parameters={"max_new_tokens": 8}),
    posted("/v1/chat/completions", messages=MESSAGES, max_tokens=8),
    posted("/v1/chat/completions", messages=MESSAGES, max_tokens=8, stream=True),
    posted("/v1/completions", prompt=TEXT, max_tokens=8, stream=True),
    posted("/v1/responses", input=TEXT, max_output_tokens=8, stream=True),
    posted("/complete", model="m", prompt=TEXT, maximum_tokens=8),
    posted("/tokenize", inputs=TEXT),
    pytest.param("GET", "/ping", {}, id="ping"),
    pytest.param("GET", "/v1/models", {}, id="models"),
    pytest.param("GET", "/no/such%2Froute?a=%20b&c=", {}, id="404"),
    pytest.param("PUT", "/invocations", {"data": b"{}"}, id="405"),
    pytest.param("POST", "/invocations", {"data": b'{"inputs": '}, id="not JSON"),
    pytest.param("POST", "/invocations", {"data": b"x" * 200_000}, id="too large"),
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 0}),
    posted("/generate_stream", inputs=TEXT, parameters={"max_new_tokens": -1}),
    posted("/v1/chat/completions", messages=[], max_tokens=8),
    posted("/v1/completions", model="another", prompt=TEXT, max_tokens=8, stream=True),
]

OF_CONNECTIONS = {"connection", "date", "keep-alive", "server", "x-request-id"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("alone") / "m", PROPERTIES)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, port = tmp_path_factory.mktemp("ray") / "m", free_port()
    command = [sys.executable, "-m", "lmi_handlers.cli", "ray", "serve", "--model-dir", str(directory), "--num-cpus"]
    command += ["0.5", "--host", "127.0.0.1", "--port", str(port), "--env", "OPTION_SERVER_TIMING=false"]
    server = Server(directory, PROPERTIES, command=command, port=port)
    started = psutil.Process(server.process.pid)
    yield server.wait_ready()
    children = started.children(recursive=True) if started.is_running() else []
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    server.process.wait(90)
    assert not psutil.wait_procs(children, timeout=20)[1], server.log


def answer(server: Server, method: str, path: str, options: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    headers = {"X-Request-Id": "the-same-id", "Content-Type": "application/json"}
    found = requests.request(method, server.url + path, headers=headers, timeout=60, **options)
    body = re.sub(rb'"(created|created_at|completed_at)":\s*\d+', b'"created":0', found.content)
    body = re.sub(rb'"(id|item_id)":\s*"(resp|msg)_\w+"', b'"id":"0"', body)
    kept = {name.lower(): value for name, value in found.headers.items() if name.lower() not in OF_CONNECTIONS}
    if body != found.content:
        kept.pop("content-length", None)
    return found.status_code, kept, body


@pytest.mark.parametrize(("method", "path", "options"), REQUESTS)
def test_the_same_bytes_as_without_ray(
    alone: Server, on_ray: Server, method: str, path: str, options: dict[str, Any]
) -> None:
    assert answer(on_ray, method, path, options) == answer(alone, method, path, options)


def test_a_body_of_unknown_length_and_one_that_is_too_long(alone: Server, on_ray: Server) -> None:
    def parts(number: int) -> Iterator[bytes]:
        yield b'{"parameters": {"max_new_tokens": 3}, "inputs": "'
        for _ in range(number):
            yield b"x" * 1000
        yield b'"}'

    for number in (50, 150):
        answers = [answer(server, "POST", "/invocations", {"data": parts(number)}) for server in (alone, on_ray)]
        assert answers[0] == answers[1]


def test_the_request_id_is_answered_once(on_ray: Server) -> None:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 2}}
    raw = read_to_end(connect(on_ray, request(body, "/invocations", "X-Request-Id: mine", "Connection: close")))
    assert raw.lower().count(b"x-request-id: mine") == 1


def test_tokens_arrive_as_they_are_generated(on_ray: Server) -> None:
    sock = connect(on_ray, streaming(400))
    pieces = received(sock)
    assert len(pieces) > 20  # 45 tokens at 200 per second; a buffer on the way would make it one piece
    assert b'"generated_text"' in dechunked(b"".join(pieces))


def test_a_client_that_leaves_frees_its_place(on_ray: Server) -> None:
    sock = connect(on_ray, streaming(4000, TEXT * 40))  # for nine seconds
    assert sock.recv(100)
    on_ray.wait_for_sequences(1)
    sock.close()
    on_ray.wait_for_sequences(0, timeout=5)


def test_metrics_are_the_servers(on_ray: Server) -> None:
    page = requests.get(f"{on_ray.url}/metrics", timeout=20)
    assert page.headers["Content-Type"].startswith("text/plain")
    assert 'vllm:num_requests_running{model_name="m"' in page.text


def test_a_replica_that_dies_cuts_its_streams_and_is_replaced(on_ray: Server) -> None:
    sock = connect(on_ray, streaming(4000, TEXT * 40))
    assert sock.recv(100)
    server_of(on_ray).kill()
    rest = b"".join(received(sock))
    assert not rest.endswith(b"0\r\n\r\n")  # nobody takes it for a whole answer
    on_ray.wait_ready(60)
    assert on_ray.invoke({"inputs": "again", "parameters": {"max_new_tokens": 5}}).json() == {"generated_text": "again"}


def test_a_shutdown_lets_requests_finish(on_ray: Server) -> None:
    """The last test of this module, because it ends Ray."""
    sock = connect(on_ray, streaming(4000, TEXT * 8))  # for two seconds
    assert sock.recv(100)
    on_ray.process.send_signal(signal.SIGTERM)
    assert b'"generated_text"' in b"".join(received(sock))
    assert on_ray.process.wait(90) == 0, on_ray.log


def streaming(limit: int, text: str = TEXT) -> bytes:
    return request({"inputs": text, "parameters": {"max_new_tokens": limit}, "stream": True}, "/invocations")


def received(sock: socket.socket) -> list[bytes]:
    """What arrives until the stream ends, piece by piece."""
    found = []
    while piece := sock.recv(1 << 16):
        found.append(piece)
        if piece.endswith(b"\r\n0\r\n\r\n"):
            break
    return found


def server_of(on_ray: Server) -> psutil.Process:
    """The server's first process."""
    for child in psutil.Process(on_ray.process.pid).children(recursive=True):
        if "lmi_handlers.gunicorn_app" in child.cmdline():
            return child
    raise AssertionError("no server runs")
