"""gunicorn without `lmi serve`: the server is the same, and gunicorn's own options take effect."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from facts import says
from raw_http import connect, request
from serving import Server, free_port
from waiting import wait_until

from lmi_handlers.app import create_app
from lmi_handlers.core.errors import ConfigError

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"
STREAM: dict[str, Any] = {
    "inputs": "abc",
    "stream": True,
    "parameters": {"max_new_tokens": 1_000_000, "ignore_eos_token": True},
}

Start = Callable[..., Server]


@pytest.fixture
def gunicorn(tmp_path: Path) -> Iterator[Start]:
    """Start gunicorn in a directory with a serving.properties; `gunicorn(properties, *arguments)`."""
    servers: list[Server] = []

    def start(properties: str, *arguments: str, environ: dict[str, str] | None = None, name: str = "m") -> Server:
        port = free_port()
        command = [str(Path(sys.executable).with_name("gunicorn")), "-c", "python:lmi_handlers.gunicorn_conf"]
        command += [*arguments, "lmi_handlers.app:create_app()"]
        environ = {"LMI_HOST": "127.0.0.1", "LMI_PORT": str(port)} | (environ or {})
        server = Server(tmp_path / name, properties, command=command, port=port, environ=environ)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def streamed(server: Server, body: dict[str, Any]) -> str:
    return text_of(server.invoke(body | {"stream": True}))


def text_of(stream: requests.Response) -> str:
    lines = stream.text.splitlines()
    assert len(lines) > 1
    text = json.loads(lines[-1])["generated_text"]
    assert isinstance(text, str)
    return text


def assert_stops_gracefully(server: Server) -> None:
    """After SIGTERM, requests in flight finish and the exit status is 0."""
    body = {"inputs": "x" * 60, "stream": True, "parameters": {"max_new_tokens": 60}}
    answers = [server.invoke(body, stream=True) for _ in range(4)]  # each has begun
    server.process.send_signal(signal.SIGTERM)
    assert [text_of(answer) for answer in answers] == ["x" * 60] * 4
    assert server.process.wait(120) == 0
    assert "Traceback" not in server.log


def test_plain_gunicorn_command_starts_the_engine_and_stops_gracefully(gunicorn: Start) -> None:
    server = gunicorn(ECHO + "option.echo_tokens_per_second=20\n").wait_ready()
    assert server.name == "m"
    assert list(server.ping().json()) == ["m"]
    assert server.engine().parent() == server.supervisor()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    assert_stops_gracefully(server)


def test_gthread_worker(gunicorn: Start) -> None:
    limits = "option.max_rolling_batch_size=4\noption.echo_tokens_per_second=20\n"
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        taken, port = sock.getsockname()[1], free_port()
        arguments = ("--worker-class", "gthread", "--threads", "32", "--bind", f"127.0.0.1:{port}")
        server = gunicorn(ECHO + limits, *arguments, environ={"LMI_PORT": str(taken)})
        server.port, server.url = port, f"http://127.0.0.1:{port}"
        server.wait_ready()  # gunicorn's own bind replaces our port
    assert streamed(server, {"inputs": "hello"}) == "hello"
    for _ in range(3):  # in total more than there are places
        server.wait_for_sequences(0)
        answers = [server.invoke(STREAM, stream=True) for _ in range(4)]
        for answer in answers:
            assert next(answer.iter_lines())
            answer.close()
        server.wait_for_sequences(0)
        silent = [connect(server, request(STREAM | {"stream": False})) for _ in range(4)]
        server.wait_for_sequences(4)
        for sock in silent:
            sock.close()
    assert server.invoke({"inputs": "next"}, timeout=60).json() == {"generated_text": "next"}
    assert server.invoke({"inputs": "hello RAISE@2"}).status_code == 424
    assert_stops_gracefully(server)


def test_two_workers_share_one_engine_and_its_limits(gunicorn: Start) -> None:
    limits = "option.max_rolling_batch_size=2\njob_queue_size=2\n"
    server = gunicorn(ECHO + limits, "--workers", "2").wait_ready()
    wait_until(lambda: len(server.web_workers()) == 2)
    first, second = server.web_workers()
    for idle, busy in ((first, second), (second, first)):  # each worker serves alone
        idle.suspend()
        try:
            answers = [busy_answer(server) for _ in range(3)]
        finally:
            idle.resume()
        assert {"hello"} == set(answers), busy
    with contextlib.ExitStack() as stack:
        for place in range(4):
            stack.enter_context(connect(server, request({"inputs": "x HANG@1"})))
            server.wait_for_sequences(min(place + 1, 2), waiting=max(place - 1, 0))
        for _ in range(8):
            refused = server.invoke({"inputs": "x"}, headers={"Connection": "close"})
            assert refused.status_code == 503
            assert says(refused.json()["error"], "2 waiting job_queue_size=2")


def busy_answer(server: Server) -> str:
    """An answer while one of the workers is stopped.

    Retries if that worker had accepted the connection, or if the other one has not heard yet that the engine is ready.
    """
    deadline = time.monotonic() + 50  # gunicorn replaces a worker that is stopped for a minute
    while time.monotonic() < deadline:
        try:
            answer = server.invoke({"inputs": "hello"}, headers={"Connection": "close"}, timeout=5)
        except requests.Timeout:
            continue
        if answer.status_code != 503:
            return str(answer.json()["generated_text"])
    raise AssertionError("the other worker does not serve alone")


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def test_unix_socket(gunicorn: Start, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    server = gunicorn(
        ECHO + "option.max_rolling_batch_size=1\noption.echo_tokens_per_second=50\n", "--bind", f"unix:{path}"
    )
    wait_until(lambda: answers_ping(path))
    status, body = unix_request(path, "POST", "/invocations", {"inputs": "hello"})
    assert (status, json.loads(body)) == (200, {"generated_text": "hello"})
    connection = UnixConnection(path)
    connection.request("POST", "/invocations", json.dumps(STREAM))
    assert connection.getresponse().read(10)
    connection.close()
    assert unix_request(path, "POST", "/invocations", {"inputs": "next"})[0] == 200
    connection = UnixConnection(path)
    connection.request("POST", "/invocations", json.dumps(STREAM | {"stream": False}))
    wait_until(lambda: re.search(rb"\nvllm:num_requests_running{.*} 1\n", unix_request(path, "GET", "/metrics")[1]))
    connection.close()
    assert unix_request(path, "POST", "/invocations", {"inputs": "next"})[0] == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0


def answers_ping(path: Path) -> bool:
    try:
        return unix_request(path, "GET", "/ping")[0] == 200
    except (FileNotFoundError, ConnectionRefusedError):  # the path exists a moment before anyone listens
        return False


def unix_request(path: Path, method: str, target: str, body: object = None) -> tuple[int, bytes]:
    connection = UnixConnection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body), {"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


HOW = "LMI_ENGINE_SOCKET is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf and without --preload"
CONFIGURED = ("-c", "python:lmi_handlers.gunicorn_conf")


@pytest.mark.parametrize("arguments", [(), (*CONFIGURED, "--preload")])
def test_what_cannot_start_an_engine_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    server = by_hand(tmp_path, *arguments, "--bind", f"127.0.0.1:{free_port()}")
    try:
        assert server.process.wait(120) in (1, 3)  # gunicorn's, depending on how many workers have ended by then
    finally:
        server.stop()
    assert f"lmi: error: {HOW}" in server.log.splitlines()
    assert "ConfigError" not in server.log  # as in a traceback of ours


def test_several_workers_and_addresses(tmp_path: Path) -> None:
    first, second, path = free_port(), free_port(), tmp_path / "http.sock"
    binds = ("--bind", f"127.0.0.1:{first}", "--bind", f"localhost:{second}", "--bind", f"unix:{path}")
    server = by_hand(tmp_path, *CONFIGURED, "--workers", "4", *binds, port=first)
    try:
        server.wait_ready()
        wait_until(lambda: len(server.web_workers()) == 4)
        for port in (first, second):
            answer = requests.post(f"http://127.0.0.1:{port}/invocations", json={"inputs": "hello"}, timeout=60)
            assert answer.json() == {"generated_text": "hello"}
        assert unix_request(path, "POST", "/invocations", {"inputs": "hello"})[0] == 200
        assert says(server.log, "only machine Unix socket")
        assert says(server.log, "no console")
        assert_stops_gracefully(server)
    finally:
        server.stop()


def test_a_sync_worker_at_a_port_that_is_shared_answers_one_request_at_a_time(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = free_port()
        other.bind(("127.0.0.1", port))
        other.listen()
        address = ("--bind", f"127.0.0.1:{port}", "--reuse-port")
        server = by_hand(tmp_path, *CONFIGURED, "-k", "sync", *address, port=port)
        try:
            wait_until(lambda: "engine ready" in server.log)
        except BaseException:
            server.stop()
            raise
    try:
        server.wait_ready()
        assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
        assert streamed(server, {"inputs": "hello"}) == "hello"
        assert says(server.log, "only machine connect")
    finally:
        server.stop()


def by_hand(tmp_path: Path, *arguments: str, port: int | None = None) -> Server:
    command = [str(Path(sys.executable).with_name("gunicorn")), *arguments, "lmi_handlers.wsgi"]
    return Server(tmp_path / "m", ECHO + "option.echo_tokens_per_second=200\n", command=command, port=port)


def test_application_without_the_gunicorn_configuration_is_rejected(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model_dir / "serving.properties").write_text(ECHO)
    monkeypatch.setenv("LMI_MODEL_DIR", str(model_dir))
    with pytest.raises(ConfigError, match=re.escape(HOW)):
        create_app()
