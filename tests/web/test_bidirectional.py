"""`/invocations-bidirectional-stream`, with an unmodified WebSocket client in the place of SageMaker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask, Response, request
from model_store import StoreServer
from raw_http import connect as connect_raw
from raw_http import read_to_end
from serving import API_KEY, Server
from waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect
from werkzeug.datastructures import Headers
from werkzeug.test import EnvironBuilder

from lmi_handlers.web.access_control import AccessControl
from lmi_handlers.web.api_keys import ApiKeys
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.bidirectional import _EVENTS, _Conversation
from lmi_handlers.web.web_socket import WebSocket, _Message

PATH = "/invocations-bidirectional-stream"
PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=10\noption.web_workers=1\n"
    "option.client_timeout=4\nmax_request_size=100000\n"
)
BODIES: dict[str, dict[str, Any]] = {
    "lmi": {"inputs": "abc", "parameters": {"max_new_tokens": 3}, "stream": True},
    "tgi": {"inputs": "abc", "parameters": {"max_new_tokens": 3, "details": True}, "stream": True},
    "openai": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "stream": True},
    "anthropic": {
        "anthropic_version": "bedrock-2023-05-31",
        "messages": [{"role": "user", "content": "abc"}],
        "max_tokens": 3,
        "stream": True,
    },
}
LONG = {"inputs": "a" * 1000, "parameters": {"max_new_tokens": 1000}, "stream": True}
SHORT = {"inputs": "xyz", "parameters": {"max_new_tokens": 3}}


@pytest.fixture(scope="module", params=["gevent", "gthread"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environ = {"GUNICORN_CMD_ARGS": "--worker-class gthread"} if request.param == "gthread" else {}
    server = Server(tmp_path_factory.mktemp("bidirectional") / "m", PROPERTIES, environ=environ)
    yield server.wait_ready()
    server.stop()


def opened(server: Server, path: str = PATH, **options: Any) -> ClientConnection:
    client: ClientConnection = connect(f"ws://127.0.0.1:{server.port}{path}", compression=None, **options)
    return client


def asked(client: ClientConnection, body: object) -> ClientConnection:
    client.send(json.dumps(body))
    return client


def until_stopped(client: ClientConnection) -> list[dict[str, Any]]:
    """The messages of an answer that a later one stops, without the last one, which says so."""
    messages: list[dict[str, Any]] = []
    while True:
        message = json.loads(client.recv(60))
        if message.get("type") == "Stopped":
            assert message["code"] == 499
            return messages
        messages.append(message)


def running(server: Server) -> int:
    lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")))


def test_a_message_is_a_body_and_its_answer_a_message(server: Server) -> None:
    with opened(server) as client:
        for kind in (str, str.encode):
            client.send(kind(json.dumps(SHORT)))
            assert json.loads(client.recv(60)) == {"generated_text": "xyz"}


def test_a_message_may_arrive_in_fragments(server: Server) -> None:
    data = json.dumps(SHORT)
    with opened(server) as client:
        client.send([data[:5], data[5:9], data[9:]])
        assert json.loads(client.recv(60)) == {"generated_text": "xyz"}


@pytest.mark.parametrize("name", BODIES)
def test_a_stream_is_a_message_for_each_record(server: Server, name: str) -> None:
    body = BODIES[name]
    expected = server.invoke(body)
    assert expected.status_code == 200
    lines = expected.text.split("\n\n")[:-1] if "event-stream" in expected.headers["Content-Type"] else None
    count = len(expected.text.splitlines()) if lines is None else len(lines)
    with opened(server) as client:
        records = [asked(client, body).recv(60)] + [client.recv(60) for _ in range(count - 1)]
        assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}, "nothing else has come"
    assert all(isinstance(record, str) for record in records)
    assert len("".join(map(str, records))) == len(expected.text)  # ids and times differ


@pytest.mark.parametrize(
    ("chunk", "events"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"data: 1\n\n", b"data: 2\n\n"]),
        (b"event: a\ndata: 1\n\n: keep-alive\n\n", [b"event: a\ndata: 1\n\n", b": keep-alive\n\n"]),
        (b"data: \xff\ndata: 1", [b"data: \xff\ndata: 1"]),
        (b"data: 1\n", [b"data: 1\n"]),
        (b"", []),
    ],
)
def test_the_events_of_a_chunk(chunk: bytes, events: list[bytes]) -> None:
    assert [event for event in _EVENTS.findall(chunk) if event] == events


@pytest.mark.parametrize("body", ["{", "[1]", json.dumps({"inputs": 5}), json.dumps({"inputs": "a", "parameters": 1})])
def test_an_error_is_the_document_of_invocations(server: Server, body: str) -> None:
    url = f"{server.url}/invocations"
    expected = requests.post(url, body, headers={"Content-Type": "application/json"}, timeout=60)
    with opened(server) as client:
        client.send(body)
        assert client.recv(60) == expected.text
        assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}


def test_an_empty_message_stops_the_answer(server: Server) -> None:
    with opened(server) as client:
        asked(client, LONG).recv(60)
        client.send("")
        assert len(until_stopped(client)) < 900
        wait_until(lambda: running(server) == 0)
        client.send("")  # nothing to stop
        assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}


def test_a_message_stops_the_answer_before_it(server: Server) -> None:
    with opened(server) as client:
        asked(client, LONG).recv(60)
        asked(client, SHORT)
        assert len(until_stopped(client)) < 900
        assert json.loads(client.recv(60)) == {"generated_text": "xyz"}
    wait_until(lambda: running(server) == 0)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_ends_its_answer(server: Server, how: str) -> None:
    with opened(server) as client:
        asked(client, LONG).recv(60)
        if how == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
    wait_until(lambda: running(server) == 0)


def test_pings_are_answered_and_do_not_count_as_messages(server: Server) -> None:
    with opened(server, ping_interval=None) as client:
        for _ in range(3):
            assert client.ping().wait(60)
        assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}


@pytest.mark.parametrize(
    ("first", "small"),
    [(b"", b"\x89\x80" + bytes(4)), (b"\x01\x80" + bytes(4), b"\x00\x81" + bytes(5))],
    ids=["pings", "a message in pieces"],
)
def test_a_client_that_floods_the_server_with_small_frames_is_told_to_go(
    server: Server, first: bytes, small: bytes
) -> None:
    with handshake(server) as sock:
        sock.sendall(first + small * 4000)
        assert server.invoke(SHORT).status_code == 200
        flood = threading.Thread(target=send_until_refused, args=(sock, small * 10_000))
        flood.start()
        assert close_code(read_to_end(sock)) == 1008
        flood.join(60)
    assert server.invoke(SHORT).status_code == 200


def send_until_refused(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


def handshake(server: Server, receive_buffer: int | None = None) -> socket.socket:
    """A connection on which frames may follow."""
    sock = connect_raw(server, receive_buffer=receive_buffer)
    key = f"Sec-WebSocket-Key: {'A' * 22}=="
    fields = ("Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key)
    sock.sendall("\r\n".join([f"GET {PATH} HTTP/1.1", *fields, "", ""]).encode())
    assert read_head(sock).startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    return sock


def read_head(sock: socket.socket) -> bytes:
    """The head of an answer."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    return head


def frame(opcode: int, data: bytes, *, fin: bool = True, length: int | None = None) -> bytes:
    """A masked frame, with a mask of zeros. `length` is what it claims to have."""
    size = len(data) if length is None else length
    assert size > 125
    return bytes([opcode | (0x80 if fin else 0), 0x80 | 127]) + size.to_bytes(8, "big") + bytes(4) + data


def close_code(frames: bytes) -> int:
    """The code of the close frame at the end."""
    start = frames.rindex(b"\x88")
    return int.from_bytes(frames[start + 2 : start + 4], "big")


@dataclass
class Silent:
    """Clients that send nothing more: one answers pings, one does not, and one is in the middle of a message."""

    patient: ClientConnection
    mute: socket.socket
    halting: socket.socket


@pytest.fixture(scope="module")
def silent(server: Server) -> Iterator[Silent]:
    """They wait at the same time."""
    halting = handshake(server)
    halting.sendall(frame(1, b"{" * 200, length=1000))
    with opened(server, ping_interval=None) as patient, handshake(server) as mute, halting:
        yield Silent(patient, mute, halting)


def test_a_message_that_does_not_go_on_ends_the_connection(silent: Silent) -> None:
    assert close_code(read_to_end(silent.halting)) == 1001


def test_a_client_that_answers_no_ping_is_told_to_go(silent: Silent) -> None:
    frames = read_to_end(silent.mute)
    assert frames.startswith(b"\x89\x00")
    assert close_code(frames) == 1001


def test_a_silent_client_stays_as_long_as_it_answers_pings(silent: Silent) -> None:
    with pytest.raises(TimeoutError):
        silent.patient.recv(3)  # the one that does not answer has been told to go before
    assert json.loads(asked(silent.patient, SHORT).recv(60)) == {"generated_text": "xyz"}


@pytest.mark.parametrize("fin", [True, False])
def test_a_message_that_is_too_large_is_refused_before_it_arrives(server: Server, fin: bool) -> None:
    sock = handshake(server)
    sock.sendall(frame(1, b"{" * 200, fin=fin, length=100001))
    assert close_code(read_to_end(sock)) == 1009


@pytest.mark.parametrize(
    "data",
    [b"\x81\x05hello", b"\xf1\x80\0\0\0\0", b"\x83\x80\0\0\0\0", b"\x80\x80\0\0\0\0", b"\x89\xfe\x00\x7e" + bytes(130)],
    ids=["unmasked", "reserved bits", "reserved opcode", "continues nothing", "long ping"],
)
def test_what_is_no_frame_ends_the_connection(server: Server, data: bytes) -> None:
    sock = handshake(server)
    sock.sendall(data)
    assert close_code(read_to_end(sock)) == 1002


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits one second for clients. The last test ends it."""
    properties = "option.rolling_batch=echo\noption.client_timeout=1\noption.web_workers=1\n"
    server = Server(tmp_path_factory.mktemp("impatient") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_a_client_that_does_not_read_is_cut_off(impatient: Server) -> None:
    server = impatient
    with handshake(server, receive_buffer=4096) as sock:
        body = {"inputs": "a" * 30_000, "parameters": {"max_new_tokens": 30_000, "details": True}, "stream": True}
        sock.sendall(frame(1, json.dumps(body).encode()))
        wait_until(lambda: '"path":"/invocations"' in server.log)
        assert '"error_code":"client_disconnected"' in server.log
        assert b"generated_text" not in read_to_end(sock)
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 426),
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 400),
        (
            {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "AA==",
                "Sec-WebSocket-Version": "13",
            },
            400,
        ),
        ({"Upgrade": "h2c", "Connection": "Upgrade"}, 426),
    ],
)
def test_what_is_no_handshake_is_refused(server: Server, headers: dict[str, str], status: int) -> None:
    answer = requests.get(server.url + PATH, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (status, "WebSocketRefused")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_are_a_405(server: Server, method: str) -> None:
    assert requests.request(method, server.url + PATH, timeout=60).status_code == 405


def test_the_key_is_needed(guarded_server: Server) -> None:
    for path in (PATH, f"{PATH}/", f"/{PATH}", f"//{PATH}//", PATH.replace("-", "%2d"), f"/x/..{PATH}"):
        with pytest.raises(InvalidStatus) as refusal:
            opened(guarded_server, path)
        assert refusal.value.response.status_code == (404 if ".." in path else 401), path
    with opened(guarded_server, additional_headers={"Authorization": f"Bearer {API_KEY}"}) as client:
        assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}


def test_pages_of_other_sites_may_not_open_it(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        opened(server, origin="https://example.com")
    assert refusal.value.response.status_code == 403


def test_the_end_of_the_server_is_said(impatient: Server) -> None:
    """To clients that send pings and to others."""
    with opened(impatient, ping_interval=None) as silent_client, opened(impatient, ping_interval=0.5) as client:
        for one in (silent_client, client):
            assert json.loads(asked(one, SHORT).recv(60)) == {"generated_text": "xyz"}
        os.kill(impatient.process.pid, signal.SIGTERM)
        for one in (silent_client, client):
            with pytest.raises(ConnectionClosed) as closed:
                one.recv(60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
    assert impatient.process.wait(60) == 0


def test_each_message_finds_its_model(tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"small": "option.rolling_batch=echo\n", "large": "option.rolling_batch=echo\n"})
    try:
        server.wait_ready()
        with opened(server) as client:
            for name in ("small", "large"):
                body = {"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
                assert json.loads(asked(client, body).recv(60))["model"] == name
            assert "model_name" in str(asked(client, SHORT).recv(60))
        with opened(server, f"{PATH}?model_name=small") as client:
            assert json.loads(asked(client, SHORT).recv(60)) == {"generated_text": "xyz"}
    finally:
        server.stop()


# Without a server

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": f"{'A' * 22}==",
}


@contextlib.contextmanager
def conversing(app: Flask, first: bytes = b"", patience: float = 60.0) -> Iterator[socket.socket]:
    """A client's connection, whose messages `app` answers. `first` has been sent already."""
    AccessControl(None, ApiKeys(None)).install(app)
    server, client = socket.socketpair()
    with server, client:
        client.settimeout(60)
        client.sendall(first)
        environ = EnvironBuilder(PATH, headers=Headers(HANDSHAKE)).get_environ() | {"gunicorn.socket": server}
        conversation = _Conversation(app, environ, WebSocket(environ, ArrivingBodies(1 << 20), 1 << 20, patience))

        def run() -> None:
            with pytest.raises(ConnectionResetError), server:
                next(conversation)

        thread = threading.Thread(target=run)
        thread.start()
        assert read_head(client).startswith(b"HTTP/1.1 101 ")
        try:
            yield client
        finally:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            thread.join(60)
            assert not thread.is_alive()


def test_an_answer_does_not_keep_its_message() -> None:
    app = Flask(__name__)
    inputs: list[Any] = []
    end = threading.Event()

    @app.post("/invocations")
    def invoke() -> Response:
        inputs.append(request.environ["wsgi.input"])
        size = len(request.data)

        def records() -> Iterator[bytes]:
            yield b"%d\n" % size
            end.wait(60)

        return Response(records(), content_type="application/jsonlines")

    with conversing(app) as client:
        client.sendall(frame(2, bytes(1000)))
        try:
            assert client.makefile("rb").read(7) == b"\x81\x051000\n"
            assert inputs[0].closed
        finally:
            end.set()


def test_an_answer_without_a_body_is_a_message() -> None:
    app = Flask(__name__)
    app.add_url_rule("/invocations", view_func=lambda: b"", methods=["POST"])
    with conversing(app) as client:
        client.sendall(frame(2, bytes(200)))
        assert client.makefile("rb").read(2) == b"\x81\x00"


@pytest.mark.parametrize("parts", [[b"{" * 200 + b"\xff"], ["é".encode()[:1] + b"{" * 200, b"{" * 200]])
def test_text_that_is_not_utf_8_ends_the_connection(parts: list[bytes]) -> None:
    with conversing(Flask(__name__)) as client:
        for position, part in enumerate(parts):
            client.sendall(frame(0 if position else 1, part, fin=position == len(parts) - 1))
        assert close_code(read_to_end(client)) == 1007


def test_a_character_may_be_in_two_fragments() -> None:
    app = Flask(__name__)
    app.add_url_rule("/invocations", view_func=lambda: request.data[200:202], methods=["POST"])
    with conversing(app) as client:
        client.sendall(frame(1, b"{" * 200 + "é".encode()[:1], fin=False) + b"\x89\x80" + bytes(4))
        client.sendall(frame(0, "é".encode()[1:] + b"{" * 200))
        assert client.makefile("rb").read(6) == b"\x8a\x00\x81\x02\xc3\xa9"


def test_fragments_take_little_more_memory_than_their_data() -> None:
    message = _Message(ArrivingBodies(1 << 20), 60.0)
    fragments = [Frame(Opcode.CONT, data, fin=False) for data in (b"ab", b"")]
    tracemalloc.start()
    try:
        for _ in range(10_000):
            for fragment in fragments:
                message.add(fragment)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 200_000  # an object for each of them takes a million
    assert message.take() == b"ab" * 10_000


def test_nothing_follows_a_frame_that_was_not_sent_whole() -> None:
    """As with gthread workers, whose sockets are not our own."""
    app = Flask(__name__)
    app.add_url_rule("/invocations", view_func=lambda: bytes(1 << 24), methods=["POST"])
    with conversing(app, frame(2, bytes(200)), patience=0.5) as client:
        assert client.recv(1, socket.MSG_PEEK)
        wait_until(lambda: not threads("bidirectional-answer"))
        frames = read_to_end(client)
    assert frames.startswith(b"\x81\x7f")
    assert len(frames) < 1 << 24


def test_a_bug_of_ours_closes_with_1011() -> None:
    app = Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    app.add_url_rule("/invocations", view_func=lambda: str(1 // 0), methods=["POST"])
    with conversing(app, frame(2, bytes(200)), patience=0.5) as client:
        assert close_code(read_to_end(client)) == 1011


def test_an_error_of_a_file_is_not_taken_for_a_client_that_has_left() -> None:
    app = Flask(__name__)

    def records() -> Iterator[bytes]:
        yield b"one\n"
        raise OSError(28, "No space left on device")

    app.add_url_rule("/invocations", view_func=lambda: Response(records()), methods=["POST"])
    with conversing(app, frame(2, bytes(200)), patience=0.5) as client:
        assert close_code(read_to_end(client).removeprefix(b"\x81\x04one\n")) == 1011


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]
