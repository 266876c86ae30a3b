"""`lmi conform` against this server, and against servers that are broken on purpose. `vllm serve`: test_remote_engines."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conforming import conform, differences
from facts import says
from lmi_command import lmi
from serving import API_KEY, Server, StartServer

DIFFERENT = {
    "tgi: malformed bodies": "errors are JSON here, as TGI's clients expect; TGI's are plain text",
    "tgi: streams that are refused": "a stream that cannot begin is an error with its status; TGI says 200",
    "tgi-root: malformed bodies": "as above",
    "tgi-root: streams that are refused": "as above",
    "openai: another model's name": "a server of one model takes any name, as LMI does",
}
"""Features in which this server differs on purpose. docs/conform.md has the reasons, too."""

ON_ANY_SERVER = ("lmi", "tgi", "openai", "openai-responses", "anthropic", "aleph-alpha", "sagemaker")


def check_ours(url: str, *apis: str, tmp_path: Path) -> None:
    """Check that the server differs where it is meant to, and nowhere else."""
    status, found = conform(url, *apis, tmp_path=tmp_path)
    wrong = differences(found)
    expected = {feature for feature in DIFFERENT if feature.partition(":")[0] in apis}
    assert set(wrong) == expected, json.dumps(wrong)
    assert status == bool(expected)


def test_this_server(echo_server: Server, tmp_path: Path) -> None:
    check_ours(echo_server.url, *ON_ANY_SERVER, tmp_path=tmp_path)


def test_this_server_in_tgis_place(compat_server: Server, tmp_path: Path) -> None:
    check_ours(compat_server.url, "tgi", "tgi-root", "sagemaker", tmp_path=tmp_path)


def test_this_server_in_mindies_place(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("option.rolling_batch=echo\noption.dialect=mindie\n")
    check_ours(server.url, "mindie", tmp_path=tmp_path)


def test_this_server_in_teis_place(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("option.rolling_batch=echo\noption.task=text-embedding\n")
    check_ours(server.url, "tei", "openai-embeddings", tmp_path=tmp_path)
    server = start_server("option.rolling_batch=echo\noption.task=text-ranking\n")
    check_ours(server.url, "tei-rerank", tmp_path=tmp_path)


@pytest.mark.long
def test_this_server_with_a_model(start_server: StartServer, tiny_llama: Path, tmp_path: Path) -> None:
    """Its weights are random, and only its template for chats is made for this."""
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\\n{% endfor %}"
    engine = "option.rolling_batch=scheduler\noption.dtype=fp32\noption.max_model_len=512\n"
    server = start_server(f"{engine}option.model_id={tiny_llama}\noption.chat_template={template}\n")
    check_ours(server.url, *ON_ANY_SERVER, tmp_path=tmp_path)


def test_accepted_differences_do_not_count(echo_server: Server) -> None:
    accept = [part for name in DIFFERENT if name.startswith("tgi: ") for part in ("--accept", name)]
    result = lmi("conform", echo_server.url, "--api", "tgi,openai-responses", *accept)
    assert result.exit_code == 0, result.output
    assert "differs (accepted)" in result.output
    assert "openai-responses: 3 of 3 features" in result.output


def test_the_key_is_sent(guarded_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", API_KEY)
    assert conform(guarded_server.url, "anthropic", tmp_path=tmp_path)[0] == 0
    monkeypatch.setenv("API_KEY", "another")
    status, found = conform(guarded_server.url, "anthropic", tmp_path=tmp_path)
    assert (status, found["apis"]["anthropic"]["features"][0]["verdict"]) == (1, "error")
    assert API_KEY not in json.dumps(found)


@pytest.mark.parametrize(
    ("api", "header", "other"),
    [("anthropic", b"x-api-key: secret", b"authorization:"), ("tei", b"authorization: bearer secret", b"x-api-key:")],
)
def test_the_key_is_where_the_apis_clients_send_it(api: str, header: bytes, other: bytes, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def refuse(connection: socket.socket, request: bytes) -> None:
        asked.append(request.lower())
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    with answering(refuse) as url:
        conform(url, api, tmp_path=tmp_path, env={"API_KEY": "secret"})
    posts = [request for request in asked if request.startswith(b"post ")]
    assert posts
    assert all(header in request and other not in request for request in posts)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["http://localhost:1", "--api", "tgi,x"], "--api 'x'"),
        (["http://localhost:1", "--api", "tgi", "--accept", "tgi: x"], "--accept 'tgi: x'"),
        (["ftp://localhost:1"], "URL http"),
        ([], "URL"),
    ],
)
def test_usage(arguments: list[str], cause: str) -> None:
    result = lmi("conform", *arguments)
    assert result.exit_code == 2
    assert says(result.output, cause)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = lmi("conform", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 1
    assert says(result.output, "Connection refused")


# Servers that are broken


@contextmanager
def answering(reply: Callable[[socket.socket, bytes], None]) -> Iterator[str]:
    """A server that reads the head of each request, calls `reply`, and ends the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        reply(connection, connection.recv(1 << 16))
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):
                            pass  # what was sent and not read would reset the connection
                    except OSError:
                        pass  # the client has ended it

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def drip(connection: socket.socket, request: bytes, *, head: bytes) -> None:
    """Send a byte now and then, until the client has had enough."""
    connection.sendall(head)
    while True:
        connection.sendall(b"1\r\n \r\n" if b"chunked" in head else b" ")
        connection.settimeout(0.05)
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (lambda c, _: drip(c, b"", head=HEAD + b"Transfer-Encoding: chunked\r\n\r\n"), "no end after 0.4 s"),
        (lambda c, _: drip(c, b"", head=HEAD + b"\r\n"), "no end after 0.4 s"),
        (lambda c, _: drip(c, b"", head=b"HTTP/1.1 200 OK\r\nX-"), "no end after 0.4 s"),
        (lambda c, _: c.sendall(HEAD + b"\r\n" + b"[" * 5_000_000), "longer than 4194304 bytes"),
        (lambda c, _: c.sendall(HEAD + b"Content-Length: 9\r\n\r\n{}"), "ended 7 bytes"),
        (lambda c, _: c.sendall(b"220 mail.example.com ESMTP\r\n"), "ESMTP"),
        (lambda c, _: None, "closed connection"),
    ],
)
def test_answers_without_an_end(reply: Callable[[socket.socket, bytes], None], cause: str, tmp_path: Path) -> None:
    with answering(reply) as url:
        result = lmi("conform", url, "--api", "mindie", "--timeout", "0.4", "--model", "m")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [says(line, f"error {cause}") for line in lines[1:]] == [True, True], result.output


def test_a_server_that_hangs_is_not_waited_for_every_time(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def hang(connection: socket.socket, request: bytes) -> None:
        asked.append(request)
        while connection.recv(1 << 16):
            pass

    with answering(hang) as url:
        status, found = conform(url, "mindie", "tgi", tmp_path=tmp_path, timeout=0.2)
    verdicts = {feature["verdict"] for api in found["apis"].values() for feature in api["features"]}
    assert (status, verdicts) == (1, {"error"})
    assert len(asked) <= 4
    assert says(found["apis"]["tgi"]["features"][-1]["cases"][0]["difference"], "not sent")


def test_redirections_are_not_followed(tmp_path: Path) -> None:
    """Else the key would go to wherever the server wants it."""
    asked: list[bytes] = []
    with answering(lambda connection, request: asked.append(request)) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other}/\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(lambda connection, request: connection.sendall(moved)) as url:
            status, found = conform(url, "mindie", tmp_path=tmp_path, env={"API_KEY": "secret"})
    (first, *_), *_ = differences(found).values()
    assert (status, first["status"], first["verdict"]) == (1, 307, "differs")
    assert other in first["difference"]
    assert asked == []


def test_answers_are_shown_as_text(tmp_path: Path) -> None:
    evil = json.dumps({"<script>alert(1)</script>\x1b[2J": 1, "generated_text": "x", "details": {}}).encode()
    page = tmp_path / "page.html"
    with answering(lambda connection, request: connection.sendall(HEAD + b"\r\n" + evil)) as url:
        result = lmi("conform", url, "--api", "mindie", "--model", "m", "--page", str(page))
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    text = page.read_text()
    assert "<script" not in text.lower()
    assert "\x1b" not in text


def test_a_name_of_a_model_that_is_not_utf_8(tmp_path: Path) -> None:
    listed = b'{"data": [{"id": "\xff"}]}'
    with answering(lambda connection, request: connection.sendall(HEAD + b"\r\n" + listed)) as url:
        status, found = conform(url, "mindie", tmp_path=tmp_path)
    assert (status, found["model"]) == (1, "model")


@pytest.mark.parametrize("status", [b"401", b"403"])
def test_a_refusal_of_everything_is_no_answer_to_a_mistake(status: bytes, tmp_path: Path) -> None:
    refusal = b'{"message": "\\u001b[2J \\ud800 \xe2\x80\xae"}'
    head = b"HTTP/1.1 " + status + b" No\r\nContent-Length: %d\r\n\r\n" % len(refusal)
    page = tmp_path / "page.html"
    with answering(lambda connection, request: connection.sendall(head + refusal)) as url:
        exit_code, found = conform(url, "sagemaker", tmp_path=tmp_path)
        lmi("conform", url, "--api", "sagemaker", "--page", str(page))
    verdicts = {feature["verdict"] for api in found["apis"].values() for feature in api["features"]}
    assert (exit_code, verdicts) == (1, {"error"})
    assert not any(character in page.read_text() for character in "\x1b\u202e")


def test_missing_routes_are_not_spoken(tmp_path: Path) -> None:
    gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with answering(lambda connection, request: connection.sendall(gone)) as url:
        status, found = conform(url, "tgi", "openai", "aleph-alpha", "sagemaker", tmp_path=tmp_path)
    assert status == 1
    verdicts = {feature["verdict"] for api in found["apis"].values() for feature in api["features"]}
    assert verdicts == {"not spoken"}
