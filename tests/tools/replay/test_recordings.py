"""What is read of a recording: Data Capture's lines, folders of requests, and what hostile ones hold."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from facts import raises
from recordings import capture_record

from lmi_handlers.apis.tgi.body import TgiParameters
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.tools.client.comparison import CompleteAnswer
from lmi_handlers.tools.client.inputs import InputFile, input_files
from lmi_handlers.tools.replay import recordings
from lmi_handlers.tools.replay.recordings import Broken, Recorded, recorded_requests
from lmi_handlers.tools.replay.sampling import is_sampled

BODY, ANSWER = b'{"inputs":"Hello"}', b'{"generated_text": "Hi"}'


def read(location: Path) -> list[Recorded | Broken]:
    return list(recorded_requests(input_files(str(location))))


def line(data: object, encoding: str, content_type: str = "text/csv") -> bytes:
    given = {"observedContentType": content_type, "mode": "INPUT", "data": data, "encoding": encoding}
    return json.dumps({"captureData": {"endpointInput": given}}).encode() + b"\n"


def test_data_capture(tmp_path: Path) -> None:
    file = tmp_path / "endpoint" / "AllTraffic" / "2026" / "11" / "27" / "09" / "00-00-000.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(
        capture_record(BODY, ANSWER, "application/json")
        + capture_record(BODY, b"data: 1\n\n", "text/event-stream", when="2026-11-27T09:00:01.500Z")
        + capture_record(BODY, None, "")
    )
    first, second, third = read(tmp_path)
    name = "endpoint/AllTraffic/2026/11/27/09/00-00-000.jsonl"
    assert isinstance(first, Recorded)
    assert isinstance(second, Recorded)
    assert isinstance(third, Recorded)
    assert (first.place, first.body, first.route) == (f"{name}:1", BODY, "/invocations")
    assert first.answer == CompleteAnswer(200, "application/json", ANSWER)
    assert second.answer == CompleteAnswer(200, "text/event-stream", b"data: 1\n\n")
    assert third.answer is None
    assert (first.time, second.time) == (1795770000.0, 1795770001.5)


@pytest.mark.parametrize("encoding", ["CSV", "JSON", "BASE64", "base64"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    data = "1,é\n2"
    captured = base64.b64encode(data.encode()).decode() if encoding.upper() == "BASE64" else data
    (tmp_path / "a.jsonl").write_bytes(line(captured, encoding))
    (found,) = read(tmp_path)
    assert isinstance(found, Recorded)
    assert (found.body, found.content_type) == (data.encode(), "text/csv")


@pytest.mark.parametrize(
    "broken",
    [
        b"{",
        b"[1]\n",
        b"\xff\xfe\n",
        b"{}\n",
        b'{"captureData": {}}\n',
        b"[" * 100_000 + b"\n",
        line("?", "BASE64"),
        line("x", "ZIP"),
        line({"a": 1}, "JSON"),
    ],
)
def test_a_broken_line_has_its_number_and_the_others_are_read(broken: bytes, tmp_path: Path) -> None:
    good = capture_record(BODY, ANSWER, "application/json")
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + broken.rstrip(b"\n") + b"\n" + good)
    first, second, third = read(tmp_path / "a.jsonl")
    assert [found.place for found in (first, second, third)] == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:4"]
    assert isinstance(second, Broken)
    assert (type(first), type(third)) == (Recorded, Recorded)


def test_a_line_that_is_too_long_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = capture_record(BODY, ANSWER, "application/json")
    monkeypatch.setattr(recordings, "MAX_LINE", len(good))
    monkeypatch.setattr(recordings, "_SKIPPED", 7)
    (tmp_path / "a.jsonl").write_bytes(good + b"x" * (3 * len(good)) + b"\n" + good)
    assert [type(found) for found in read(tmp_path)] == [Recorded, Broken, Recorded]


def test_compressed_lines(tmp_path: Path) -> None:
    good = gzip.compress(capture_record(BODY, ANSWER, "application/json"))
    (tmp_path / "a.jsonl.gz").write_bytes(good)
    (tmp_path / "b.jsonl.gz").write_bytes(good[:-12])
    (tmp_path / "c.jsonl.gz").write_bytes(b"no gzip")
    assert [type(found) for found in read(tmp_path)][-2:] == [Broken, Broken]
    assert isinstance(read(tmp_path)[0], Recorded)


class Vanished(InputFile):
    """An object that was removed from S3 after it had been listed."""

    name = "b.jsonl"

    def open_raw(self) -> IO[bytes]:
        raise LoadFailed("gone")


def test_a_file_that_vanishes_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(capture_record(BODY, ANSWER, "application/json"))
    (file,) = input_files(str(tmp_path))
    assert [type(found) for found in recorded_requests([Vanished(), file])] == [Broken, Recorded]


def test_a_folder_of_requests(tmp_path: Path) -> None:
    chat = tmp_path / "v1" / "chat" / "completions"
    chat.mkdir(parents=True)
    (tmp_path / "hello.request.json").write_bytes(BODY)
    (tmp_path / "hello.answer.json").write_bytes(ANSWER)
    (chat / "bad.request.json").write_bytes(b"{}")
    (chat / "bad.answer.422.json").write_bytes(b'{"error":"x"}\n')
    (chat / "new.request.txt").write_bytes(b"x")
    (tmp_path / "README").write_bytes(b"about")
    (tmp_path / "gone.answer.json").write_bytes(ANSWER)
    found = {each.place: each for each in read(tmp_path)}
    hello, bad, new = (found[name] for name in ("hello.request.json", *list(found)[-2:]))
    assert isinstance(found["README"], Broken)
    assert isinstance(found["gone.answer.json"], Broken)
    assert isinstance(hello, Recorded)
    assert isinstance(bad, Recorded)
    assert isinstance(new, Recorded)
    assert (hello.body, hello.route, hello.answer) == (
        BODY,
        "/invocations",
        CompleteAnswer(200, "application/json", ANSWER),
    )
    assert (bad.route, bad.answer) == (
        "/v1/chat/completions",
        CompleteAnswer(422, "application/json", b'{"error":"x"}'),
    )
    assert (new.content_type, new.answer) == ("text/plain", None)


def test_a_request_of_another_name_is_told_its_name(tmp_path: Path) -> None:
    """Alone, its lines are read as Data Capture's."""
    folder = tmp_path / "generate"
    folder.mkdir()
    (folder / "hello.json").write_bytes(BODY)
    (alone,) = read(tmp_path)
    assert isinstance(alone, Broken)
    (folder / "hello.answer.json").write_bytes(ANSWER)
    (folder / "README").write_bytes(b"about")
    readme, answer, request = read(tmp_path)
    hints = ["hello.request.json" in broken.cause for broken in (alone, readme, answer, request)]  # type: ignore[union-attr]
    assert hints == [True, False, False, True]


def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """What is read is sent to a server. A link within the folder, and one that is named itself, are the user's own."""
    folder = tmp_path / "day"
    folder.mkdir()
    secret, inside = tmp_path / "secret", folder / "a.jsonl"
    for file in (secret, inside):
        file.write_bytes(capture_record(BODY, ANSWER, "application/json"))
    (folder / "b.jsonl").symlink_to(inside)
    (folder / "round").symlink_to("round")
    assert [found.place for found in read(folder)] == ["a.jsonl:1", "b.jsonl:1"]
    for target in (secret, tmp_path, tmp_path / "missing"):
        link = folder / "c.jsonl"
        link.symlink_to(target)
        with raises(ConfigError, f"c.jsonl {target}"):
            read(folder)
        link.unlink()
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert len(read(link)) == 2
    (tmp_path / "link.jsonl").symlink_to(secret)
    assert len(read(tmp_path / "link.jsonl")) == 1


@pytest.mark.parametrize(
    ("body", "sampled"),
    [
        ({"inputs": "x"}, False),
        ({"inputs": "x", "parameters": {"do_sample": True}}, True),
        ({"inputs": "x", "parameters": {"do_sample": True, "seed": 1}}, False),
        ({"inputs": "x", "parameters": {"temperature": 0.5}}, True),
        ({"inputs": "x", "parameters": {"temperature": 0.5, "do_sample": False}}, False),
        ({"inputs": "x", "parameters": {"top_p": None}}, False),
        ({"messages": []}, True),
        ({"messages": [], "temperature": 0}, False),
        ({"prompt": "x", "seed": 7}, False),
        ([1], False),
    ],
)
def test_sampled_requests(body: Any, sampled: bool) -> None:
    assert is_sampled(recorded(body)) is sampled


@pytest.mark.parametrize(
    ("answer", "route", "sampled"),
    [
        (b'[{"generated_text":"xy"}]', "/invocations", True),
        (b'data: {"index":1,"token":{"id":1,"text":"y","logprob":-1.0,"special":false}}\n\n', "/invocations", True),
        (b'data:{"index":1,"token":{"id":1,"text":"y","logprob":-1.0,"special":false}}\n\n', "/invocations", True),
        (b'{"generated_text":"xy"}', "/generate", True),
        (b'{"generated_text": "y"}', "/invocations", False),
        (b'[\n  {\n    "generated_text":"xy"\n  }\n]', "/invocations", False),  # LMI's dynamic batches
        (b'data: {"token": {"id": 1, "text": "y", "log_prob": -1.0}}\n\n', "/invocations", False),
    ],
)
def test_tgi_draws_unless_there_are_parameters(answer: bytes, route: str, sampled: bool) -> None:
    assert is_sampled(recorded({"inputs": "x"}, answer, route)) is sampled
    assert not is_sampled(recorded({"inputs": "x", "parameters": {}}, answer, route))


@pytest.mark.parametrize(
    ("parameters", "sampled"),
    [
        ({"temperature": 1}, False),
        ({"temperature": 1.0, "max_new_tokens": 5}, False),
        ({"temperature": 0.5}, True),
        ({"temperature": 0.5, "do_sample": False}, True),
        ({"temperature": 0.5, "seed": 1}, False),
        ({"temperature": 1, "do_sample": True}, True),
        ({"temperature": 1, "top_k": 5}, True),
        ({"typical_p": 0.9, "do_sample": False}, True),
    ],
)
def test_tgi_draws_by_rules_of_its_own(parameters: dict[str, Any], sampled: bool) -> None:
    body = {"inputs": "x", "parameters": parameters}
    for answer, route in ((b'[{"generated_text":"xy"}]', "/invocations"), (b'{"generated_text":"xy"}', "/generate")):
        assert is_sampled(recorded(body, answer, route)) is sampled
    params = msgspec.convert(parameters, TgiParameters).sampling_params(stream=False)  # as our own TGI API samples
    assert (params.temperature > 0 and params.seed is None) is sampled


def recorded(body: Any, answer: bytes = b"", route: str = "/invocations") -> Recorded:
    reply = CompleteAnswer(200, "application/json", answer)
    content = json.dumps(body).encode()
    return Recorded(place="day.jsonl:1", body=content, content_type="application/json", route=route, answer=reply)
