"""`lmi invoke`: the same command line for a server and for its local runtime as AWS."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from facts import says
from lmi_command import lmi
from serving import Server

PROMPT = {"inputs": "one two", "parameters": {"max_new_tokens": 7}}
CHAT = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 13}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ("--local-runtime", "--split-payload-parts")
    server = Server(tmp_path_factory.mktemp("model"), "option.rolling_batch=echo\n", *arguments).wait_ready()
    yield server
    server.stop()


@pytest.fixture
def url(running: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"http://127.0.0.1:{running.port}"
    for name, value in {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": address,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }.items():
        monkeypatch.setenv(name, value)
    return address


@pytest.mark.parametrize("body", [PROMPT, CHAT], ids=["lmi", "openai"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_same_text_from_a_server_and_from_aws(url: str, body: dict[str, object], stream: bool) -> None:
    data = json.dumps(body | {"stream": stream})
    direct = lmi("invoke", "--url", url, data)
    assert direct.exit_code == 0, direct.output
    assert direct.stdout == ("one two\n" if "inputs" in body else "user: one two\n")
    assert lmi("invoke", "--endpoint-name", "any", data).stdout == direct.stdout


def test_bodies_from_files_and_standard_input_and_bytes_as_they_are(url: str, tmp_path: Path) -> None:
    data = json.dumps(PROMPT | {"stream": True})
    (tmp_path / "body.json").write_text(data)
    from_file = lmi("invoke", "--url", url, f"@{tmp_path / 'body.json'}", "--raw").stdout
    assert json.loads(from_file.splitlines()[-1])["generated_text"]
    for aws in (("--url", url), ("--endpoint-name", "any")):
        assert lmi("invoke", *aws, "-", "--raw", input=data).stdout == from_file
    assert says(lmi("invoke", "--url", url, "@nothing.json").stderr, "nothing.json read No")


def test_sessions_and_refusals(url: str) -> None:
    new = ('{"requestType": "NEW_SESSION"}', "--session-id", "NEW_SESSION")
    direct, aws = lmi("invoke", "--url", url, *new), lmi("invoke", "--endpoint-name", "any", *new)
    assert "X-Amzn-SageMaker-Session-Id: " in direct.stderr
    session = aws.stderr.split("NewSessionId: ")[1].split(";")[0]
    assert lmi("invoke", "--endpoint-name", "any", json.dumps(PROMPT), "--session-id", session).exit_code == 0
    unknown = (json.dumps(PROMPT), "--session-id", "unknown")
    for target in (("--url", url), ("--endpoint-name", "any")):
        refused = lmi("invoke", *target, *unknown)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "unknown" in refused.stderr
    assert "http://127.0.0.1:1: [Errno" in lmi("invoke", "--url", "http://127.0.0.1:1", "{}").stderr
    assert "must be an http or https URL" in lmi("invoke", "--url", "localhost", "{}").stderr
    assert says(lmi("invoke", "--url", "http://127.0.0.1:99999", "{}").stderr, "--url http://127.0.0.1:99999 range")
    assert "--url http://[::1: Invalid IPv6 URL" in lmi("invoke", "--url", "http://[::1", "{}").stderr
    assert lmi("invoke", "{}").exit_code == 2


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"200 OK\r\nContent-Length: 9\r\n\r\ntext", "connection 5 end"),
        (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n", "IncompleteRead"),
        (b"307 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", "307 http://elsewhere/"),
    ],
)
def test_answers_that_are_no_whole_answers(answer: bytes, cause: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as pool:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/path?version=2"
        result = pool.submit(lmi, "invoke", "--url", url, "{}")
        connection, _ = listening.accept()
        with connection:
            request = b""
            while not request.endswith(b"{}"):
                request += connection.recv(4096)
            connection.sendall(b"HTTP/1.1 " + answer)
        assert request.startswith(b"POST /path?version=2 ")
        assert result.result().exit_code == 1
        assert says(result.result().stderr, cause)
