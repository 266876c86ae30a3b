"""`lmi replay`: recorded days against servers that answer alike, and against one with another option."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from facts import says
from lmi_command import lmi
from recordings import capture_record
from serving import Server, free_port

from lmi_handlers.tools.client.comparison import CompleteAnswer, text_of
from lmi_handlers.tools.client.inputs import input_files
from lmi_handlers.tools.replay import replay, targets
from lmi_handlers.tools.replay.page import as_page
from lmi_handlers.tools.replay.recordings import Broken, Recorded, recorded_requests
from lmi_handlers.tools.replay.replay import Outcome, Pace, Replay
from lmi_handlers.tools.replay.report import Collector, parse_thresholds, totals
from lmi_handlers.tools.replay.scoring import NotScored, log_probability_gap
from lmi_handlers.tools.replay.targets import NoAnswer, Target, Timed, UrlTarget

DAY: list[dict[str, Any]] = [
    {"inputs": "one two three four", "parameters": {"max_new_tokens": 4}},
    {"inputs": "details of an answer", "parameters": {"max_new_tokens": 3, "details": True}},
    {"inputs": "a stream of tokens", "parameters": {"max_new_tokens": 4}, "stream": True},
    {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "temperature": 0},
    {"messages": [{"role": "user", "content": "drawn"}], "max_tokens": 5},
    {"prompt": "seeded text", "max_tokens": 4, "seed": 3, "temperature": 0.7},
]


def record(server: Server, folder: Path) -> None:
    """Ask the server as the day's clients did, and write Data Capture's lines."""
    lines = []
    for body in DAY:
        answer = server.invoke(body)
        assert answer.status_code == 200
        lines.append(capture_record(json.dumps(body).encode(), answer.content, answer.headers["Content-Type"]))
    folder.mkdir()
    (folder / "day.jsonl").write_bytes(b"".join(lines))


def replayed(folder: Path, url: str, *arguments: str, status: int) -> dict[str, Any]:
    report = folder / "report"
    result = lmi("replay", "--input", str(folder / "day.jsonl"), "--url", url, "--json", str(report), *arguments)
    assert result.exit_code == status, result.output
    document: dict[str, Any] = json.loads(report.read_bytes()) | {"output": result.output}
    return document


def test_a_day_is_a_go_on_the_same_server(echo_server: Server, tmp_path: Path) -> None:
    record(echo_server, tmp_path / "day")
    page = tmp_path / "page.html"
    found = replayed(tmp_path / "day", echo_server.url, "--page", str(page), status=0)
    summary = found["summary"]
    assert (summary["go"], summary["requests"], summary["outcomes"]) == (True, len(DAY), {"equal": len(DAY)})
    assert "id" in summary["but_for"]
    assert summary["tokens"] == summary["recorded_tokens"] > 0
    stream = found["requests"][2]
    assert stream["first_token_seconds"] <= stream["total_seconds"]
    assert found["requests"][1]["answer"]["finish_reason"] == "length"
    assert found["output"].splitlines()[-1] == "GO"
    assert "lmi replay" in page.read_text()


def test_one_option_changed_is_named(echo_server: Server, compat_server: Server, tmp_path: Path) -> None:
    """With `option.tgi_compat=true`, LMI's bodies are answered as TGI does. OpenAI's stay as they were."""
    record(echo_server, tmp_path / "day")
    found = replayed(tmp_path / "day", compat_server.url, status=1)
    kinds = {outcome["number"]: outcome["kind"] for outcome in found["requests"]}
    assert kinds[1] == kinds[2] == kinds[3] == "format"
    assert kinds[4] == kinds[5] == kinds[6] == "equal"
    changes = {change["detail"] for change in found["summary"]["changes"]}
    assert any(says(change, "$ object list") for change in changes)
    assert any(says(change, "content type application/jsonlines text/event-stream") for change in changes)
    assert found["output"].splitlines()[-1].startswith("NO-GO: format: 3 of 6")
    replayed(tmp_path / "day", compat_server.url, "--allow", "format:50%", status=0)
    replayed(tmp_path / "day", compat_server.url, "--allow", "format:2", status=1)


def test_an_endpoint_is_asked_as_it_was(echo_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and the container's own errors come through AWS's API as they were."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", echo_server.url)
    record(echo_server, tmp_path / "day")
    refused = echo_server.invoke({"inputs": 5})
    (tmp_path / "day" / "bad.request.json").write_text('{"inputs": 5}')
    (tmp_path / "day" / f"bad.answer.{refused.status_code}.json").write_bytes(refused.content)
    (tmp_path / "day" / "v1").mkdir()
    (tmp_path / "day" / "v1" / "other.request.json").write_text("{}")
    report = tmp_path / "report"
    aws = ("--endpoint-name", "any", "--region", "us-east-1", "--allow", "failed:1", "--json", str(report))
    result = lmi("replay", "--input", str(tmp_path / "day"), *aws)
    assert result.exit_code == 0, result.output
    assert json.loads(report.read_bytes())["summary"]["outcomes"] == {"equal": len(DAY) + 1, "failed": 1}


def test_a_day_on_a_server_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "day.jsonl").write_bytes(capture_record(b"{}", b"{}", "application/json") + b"broken\n")
    found = replayed(tmp_path, f"http://127.0.0.1:{free_port()}", status=1)
    assert found["summary"]["outcomes"] == {"failed": 1, "broken": 1}
    assert found["requests"][1]["place"] == "day.jsonl:2"
    assert "no answer was compared" in found["summary"]["objections"]


def test_broken_lines_are_no_go(echo_server: Server, tmp_path: Path) -> None:
    """Else a file of which only the first line can be read would be a proof."""
    record(echo_server, tmp_path / "day")
    with (tmp_path / "day" / "day.jsonl").open("ab") as file:
        file.write(b"broken\n")
    found = replayed(tmp_path / "day", echo_server.url, status=1)
    assert found["summary"]["outcomes"] == {"equal": len(DAY), "broken": 1}
    replayed(tmp_path / "day", echo_server.url, "--allow", "broken:1", status=0)


def test_reports_have_no_secrets_and_any_text(tmp_path: Path) -> None:
    """Names of files, and what servers write, may have halves of surrogate pairs."""
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "é\udcff.request.json").write_bytes(b"{}")
    report, page = tmp_path / "report", tmp_path / "page"
    url = f"http://127.0.0.1:{free_port()}/?token=hunter2"
    arguments = ["--url", url, "--json", str(report), "--page", str(page)]
    result = lmi("replay", "--input", str(tmp_path / "day"), *arguments)
    assert result.exit_code == 1, result.output
    (request,) = json.loads(report.read_bytes())["requests"]
    assert (request["place"], request["kind"]) == ("é\udcff.request.json", "failed")
    assert "é" in report.read_text()
    for text in (result.output, report.read_text(), page.read_text()):
        assert "hunter2" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--input", "nowhere", "--url", "http://127.0.0.1:1"],
        ["--input", ".", "--url", "ftp://x"],
        ["--input", "."],
        ["--input", ".", "--url", "http://x", "--endpoint-name", "e"],
        ["--input", ".", "--url", "http://x", "--allow", "equal:1"],
        ["--input", ".", "--url", "http://x", "--allow", "text:-1"],
        ["--input", ".", "--url", "http://x", "--allow", "text:nan"],
        ["--input", ".", "--url", "http://x", "--speed", "0"],
    ],
)
def test_usage(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    assert lmi("replay", *arguments).exit_code == 2


def test_nothing_recorded_but_the_body_is_sent(tmp_path: Path) -> None:
    """Data Capture's custom attributes may be secret."""
    (tmp_path / "day.jsonl").write_bytes(capture_record(b'{"inputs": "x"}', b"{}", "application/json"))
    (recorded,) = recorded_requests(input_files(str(tmp_path)))
    assert isinstance(recorded, Recorded)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(60)
        target = UrlTarget(f"http://127.0.0.1:{listener.getsockname()[1]}", None, None)
        timed = pool.submit(target.ask, recorded)
        connection, _ = listener.accept()
        with connection:
            sent = b""
            while not sent.endswith(recorded.body):
                sent += connection.recv(1 << 16) or b"END" + recorded.body
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert timed.result(60).reply.body == b"{}"
    head, _, body = sent.partition(b"\r\n\r\n")
    names = {line.partition(b":")[0].lower() for line in head.splitlines()[1:]}
    assert names == {b"host", b"accept-encoding", b"content-length", b"content-type"}
    assert body == recorded.body


def test_an_answer_without_an_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_MAX_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NoAnswer) as raised:
        UrlTarget(f"http://127.0.0.1:{silent.getsockname()[1]}", None, None).ask(requested(b"{}"))
    assert says(raised.value, "0.2 s")


class Recording(Target):
    """A target that notes when it is asked, and waits for `seconds` before each answer."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.times: list[float] = []
        self._seconds = seconds
        self._running = 0
        self.most = 0

    def ask(self, recorded: Recorded) -> Timed:
        self.times.append(time.monotonic())
        self._running += 1
        self.most = max(self.most, self._running)
        time.sleep(self._seconds)
        self._running -= 1
        if recorded.body == b"fails":
            raise NoAnswer("gone")
        return Timed(CompleteAnswer(200, "text/plain", recorded.body), self._seconds)


def requested(body: bytes, when: float | None = None) -> Recorded:
    return Recorded(
        place="a", body=body, content_type="text/plain", time=when, answer=CompleteAnswer(200, "text/plain", body)
    )


def test_outcomes_keep_their_order_and_concurrency_is_bounded() -> None:
    target = Recording(0.01)
    given = [requested(b"fails" if number == 7 else b"%d" % number) for number in range(30)]
    found = list(Replay(target).outcomes([*given, Broken("b", "cause")], Pace(3)))
    assert [outcome.number for outcome in found] == list(range(1, 32))
    assert [outcome.kind for outcome in found if outcome.kind != "equal"] == ["failed", "broken"]
    assert target.most <= 3


class Hanging(Target):
    """A target whose first answer waits for `released`, but not for ever."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.was_released = False

    def ask(self, recorded: Recorded) -> Timed:
        if recorded.body == b"0":
            self.was_released = self.released.wait(0.5)
        return Timed(CompleteAnswer(200, "text/plain", recorded.body), 0.0)


def test_a_request_that_hangs_holds_up_the_others_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_MOST_PENDING", 10)
    target = Hanging()

    def given() -> Iterator[Recorded]:
        for number in range(40):
            if number == 30:
                target.released.set()
            yield requested(b"%d" % number)

    found = list(Replay(target).outcomes(given(), Pace(2)))
    assert [outcome.number for outcome in found] == list(range(1, 41))
    assert not target.was_released


def test_requests_are_sent_at_the_times_of_the_recording() -> None:
    target = Recording()
    given = [requested(b"a", 1000.0), requested(b"b", 1000.0), requested(b"c", 1002.0), requested(b"d")]
    started = time.monotonic()
    assert len(list(Replay(target).outcomes(given, Pace(4, speed=10)))) == 4
    assert sorted(target.times)[2] - started >= 0.2


def scores(old: float, new: float) -> Any:
    """A server that gives the token after "one" the probability `old` if it is "two", else `new`, as TGI would."""

    def ask(request: Recorded) -> CompleteAnswer:
        body = json.loads(request.body)
        words = body["inputs"].split()
        assert body["parameters"]["decoder_input_details"] is True
        assert "stream" not in body
        prefill = [{"id": hash(word), "logprob": new if word != "two" else old} for word in words]
        return CompleteAnswer(200, "application/json", json.dumps({"details": {"prefill": prefill}}).encode())

    return ask


def test_a_text_that_parts_is_scored() -> None:
    request = Recorded(place="a", body=b'{"inputs":"Hello ","stream":true}', content_type="application/json")
    assert log_probability_gap(request, ("one two", "one three"), scores(-0.75, -0.5)) == 0.25
    with pytest.raises(NotScored):
        log_probability_gap(request, ("one", "one three"), scores(-0.75, -0.5))
    with pytest.raises(NotScored):
        log_probability_gap(request, ("one two", "one three"), lambda _: CompleteAnswer(422, "", b"{}"))
    with pytest.raises(NotScored):
        log_probability_gap(request, ("one two", "one three"), lambda _: CompleteAnswer(200, "", b'{"details":7}'))


def test_what_is_asked_for_an_answer_is_not_asked_for_a_score() -> None:
    """An answer of one token has no minimum of five, and a beginning that is cut off would shift all tokens."""
    parameters = {"min_new_tokens": 5, "truncate": 3, "best_of": 2, "return_full_text": True, "adapters": "a"}
    body = json.dumps({"inputs": "Hello ", "parameters": parameters, "stream": True}).encode()
    request = Recorded(place="a", body=body, content_type="application/json")
    asked: list[Any] = []

    def ask(scored: Recorded) -> CompleteAnswer:
        asked.append(json.loads(scored.body)["parameters"])
        return scores(-0.75, -0.5)(scored)  # type: ignore[no-any-return]

    assert log_probability_gap(request, ("one two", "one three"), ask) == 0.25
    expected = {"adapters": "a", "max_new_tokens": 1, "details": True, "decoder_input_details": True}
    assert asked == [expected, expected]


def other_text(target: Target, body: dict[str, Any]) -> Recorded:
    """Return a request with an expected answer whose text ends with another character."""
    request = Recorded(place="a", body=json.dumps(body).encode(), content_type="application/json")
    reply = target.ask(request).reply
    text = text_of([json.loads(reply.body)])
    assert text
    changed = reply.body.decode()
    for is_ascii in (True, False):
        old, new = (json.dumps(each, ensure_ascii=is_ascii)[1:-1] for each in (text, text[:-1] + "~"))
        changed = changed.replace(old, new)
    return msgspec.structs.replace(request, answer=msgspec.structs.replace(reply, body=changed.encode()))


PARTING = (
    {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 6},
    {"prompt": "Hello", "temperature": 0, "max_tokens": 6},
    {"inputs": "Hello", "parameters": {"max_new_tokens": 6}},
)


def test_a_text_that_parts_by_rounding(echo_server: Server) -> None:
    """For the echo engine, all tokens are equally probable."""
    target = UrlTarget(echo_server.url, None, None)
    found = Replay(target).outcomes([other_text(target, body) for body in PARTING], Pace(1))
    assert [outcome.kind for outcome in found] == ["rounding"] * 3


def test_a_model_scores_texts(tiny_server: Server) -> None:
    target = UrlTarget(tiny_server.url, None, None)
    found = list(Replay(target).outcomes([other_text(target, body) for body in PARTING[1:]], Pace(1)))
    assert ["nats" in outcome.detail for outcome in found] == [True] * 2


class Fixed(Target):
    """A server with one answer."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def ask(self, recorded: Recorded) -> Timed:
        return Timed(CompleteAnswer(200, "application/json", self._answer.encode()), 0.0)


CALL = '{"choices":[{"message":{"content":null,"tool_calls":[{"arguments":"%s"}]},"finish_reason":"tool_calls"}]}'
EMBEDDING = '{"data":[{"embedding":[%s,0.5]}]}'


@pytest.mark.parametrize(
    ("body", "answer", "kind"),
    [
        ('{"messages":[]}', CALL, "form"),
        ('{"messages":[],"seed":1}', CALL, "values"),
        ('{"input":"x"}', EMBEDDING, "values"),
    ],
)
def test_drawn_answers_are_those_that_are_generated(body: str, answer: str, kind: str) -> None:
    expected = CompleteAnswer(200, "application/json", (answer % 1).encode())
    request = Recorded(place="a", body=body.encode(), content_type="application/json", answer=expected)
    (found,) = Replay(Fixed(answer % 2)).outcomes([request], Pace(1))
    assert found.kind == kind


class Scoring(Target):
    """A server that says "one three", and gives "two" in its place the log probability `old`."""

    def __init__(self, old: float) -> None:
        self._scores = scores(old, -0.5)

    def ask(self, recorded: Recorded) -> Timed:
        asks_for_scores = b"decoder_input_details" in recorded.body
        answer = CompleteAnswer(200, "application/json", b'{"generated_text": "one three"}')
        return Timed(self._scores(recorded) if asks_for_scores else answer, 0.0)


@pytest.mark.parametrize(("old", "kind"), [(-0.55, "rounding"), (-0.45, "rounding"), (-0.75, "text"), (-9.0, "text")])
def test_how_much_less_probable_a_token_may_be(old: float, kind: str) -> None:
    expected = CompleteAnswer(200, "application/json", b'{"generated_text": "one two"}')
    request = Recorded(place="a", body=b'{"inputs":"Hello "}', content_type="application/json", answer=expected)
    (found,) = Replay(Scoring(old)).outcomes([request], Pace(1))
    assert found.kind == kind


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name in ("src", "href", "onerror") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_hostile_recording_is_text_on_the_page() -> None:
    evil = '<img src=x onerror="alert(1)">\x1b[31m\u202e'
    outcome = Outcome(
        number=1, place=evil, kind="text", detail=evil, offset=3, expected=f"a{evil}", received=f"b{evil}"
    )
    collector = Collector(parse_thresholds([]))
    collector.add(outcome)
    page = _Tags()
    document = as_page(collector.summary(), collector.shown, {evil: evil})
    page.feed(document)
    assert "img" not in page.tags
    assert page.text.count("alert(1)") >= 6
    assert not any(character in document for character in "\x1b\u202e")


def test_a_go_says_if_no_text_was_compared() -> None:
    collector = Collector(parse_thresholds([]))
    for kind in ("form", "unrecorded"):
        collector.add(Outcome(number=1, place="a", kind=kind))
    assert says(list(totals(collector.summary()))[-1], "GO only formats")
    collector.add(Outcome(number=2, place="b", kind="equal"))
    assert list(totals(collector.summary()))[-1] == "GO"


def test_the_report_keeps_its_bounds() -> None:
    collector = Collector(parse_thresholds([]))
    for number in range(3000):
        collector.add(Outcome(number=number, place="a", kind="values", detail=f"record {number}: $.a[{number}] was 1"))
    assert len(collector.shown) == 500
    assert [(change.detail, change.count) for change in collector.summary().changes] == [("$.a[] was 1", 3000)]
