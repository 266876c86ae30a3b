"""`--local-runtime-capture`: what boto3 asks for becomes Data Capture's lines, which `lmi replay` sends again."""

from __future__ import annotations

import json
import resource
from contextlib import closing
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from flask import Flask
from lmi_command import lmi
from runtime_client import runtime_client
from serving import StartServer
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime import data_capture
from lmi_handlers.laptop.sagemaker_runtime.data_capture import DataCapture, append_line
from lmi_handlers.web.arriving_bodies import ArrivingBodies

BODY = {"inputs": "one two three", "parameters": {"max_new_tokens": 3}}
STREAM = {**BODY, "stream": True}


def test_a_captured_day_is_a_go(start_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    server = start_server(
        "option.rolling_batch=echo\n", "--local-runtime", "--local-runtime-capture", str(folder), "--workers", "1"
    )
    with closing(runtime_client(server.url)) as client:
        given = {"EndpointName": "my-endpoint", "ContentType": "application/json"}
        whole = client.invoke_endpoint(**given, Body=json.dumps(BODY), InferenceId="i-1", CustomAttributes="trace=1")
        with closing(whole["Body"]) as body:
            answer = body.read()
        streamed = client.invoke_endpoint_with_response_stream(**given, Body=json.dumps(STREAM))
        with closing(streamed["Body"]) as events:
            parts = b"".join(event["PayloadPart"]["Bytes"] for event in events)
        with pytest.raises(ClientError):
            client.invoke_endpoint(**given, Body="{}")  # errors are not captured
    wait_until(lambda: sum(found.read_bytes().count(b"\n") for found in folder.rglob("*.jsonl")) == 2)
    (file,) = folder.rglob("*.jsonl")
    assert file.stat().st_mode & 0o077 == 0
    assert file.relative_to(folder).parts[:2] == ("my-endpoint", "AllTraffic")
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["captureData"]["endpointInput"]["data"] == json.dumps(BODY)
    assert first["captureData"]["endpointOutput"] == {
        "observedContentType": "application/json",
        "mode": "OUTPUT",
        "data": answer.decode(),
        "encoding": "JSON",
    }
    metadata = first["eventMetadata"]
    assert (metadata["inferenceId"], metadata["customAttributes"]) == ("i-1", ["trace=1"])
    assert second["captureData"]["endpointOutput"]["encoding"] == "BASE64"
    assert parts
    report = tmp_path / "report.json"
    arguments = ["--url", server.url, "--speed", "1000", "--json", str(report)]
    result = lmi("replay", "--input", str(folder), *arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(report.read_bytes())["summary"]["outcomes"] == {"equal": 2}


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        DataCapture(tmp_path / "file" / "capture").check()
    DataCapture(tmp_path / "new" / "capture").check()
    assert list((tmp_path / "new" / "capture").iterdir()) == []


def test_a_full_folder_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever worker has filled it, and until somebody moves files out of it."""
    monkeypatch.setattr(data_capture, "MAX_BYTES", 1000)
    monkeypatch.setattr(data_capture, "_LOOK_BYTES", 300)
    first, second = DataCapture(tmp_path), DataCapture(tmp_path)
    app = Flask("test")
    app.extensions["lmi_bodies"] = ArrivingBodies.of(1000)
    with app.test_request_context(method="POST", data=b"{}"):
        for _ in range(5):
            assert first.begin("endpoint") is not None
            first.append("endpoint/lines.jsonl", bytes(199) + b"\n")
        assert [first.begin("endpoint") for _ in range(3)] == [None] * 3
        assert len(caplog.records) == 1
        monkeypatch.setattr(data_capture, "_LOOK_SECONDS", 0.0)
        assert second.begin("endpoint") is None
        (tmp_path / "endpoint" / "lines.jsonl").unlink()
        captured = second.begin("endpoint")
        assert captured is not None
        captured.write("application/json", b"{}")
    assert [file.read_bytes().count(b"\n") for file in tmp_path.rglob("*.jsonl")] == [1]


def test_a_folder_is_full_whatever_else_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a file that has just been moved, for which a link that leads nowhere stands."""
    monkeypatch.setattr(data_capture, "MAX_BYTES", 100)
    for endpoint in ("a", "c"):
        (tmp_path / endpoint).mkdir()
        (tmp_path / endpoint / "lines.jsonl").write_bytes(bytes(60))
    (tmp_path / "b.jsonl").symlink_to("nowhere")
    assert DataCapture(tmp_path).begin("endpoint") is None


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    """The next line would go on in what was written of it. A limit of the process stands for a full disk."""
    path = tmp_path / "lines"
    with path.open("ab", buffering=0) as file:
        append_line(file, b"first\n")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(OSError, match="large"):
                append_line(file, b"2" * 1000 + b"\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        append_line(file, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
