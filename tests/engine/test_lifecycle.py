"""What happens if engines die, hang or fail to load, clients disconnect or queues are full."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests
from facts import Said, says
from raw_http import connect, request
from server_sent_events import json_events
from serving import Server, StartServer
from waiting import Watch, wait_until

from lmi_handlers.core.load_phase import LoadPhase

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"


def last_record(body: str) -> dict[str, Any]:
    assert body.endswith("\n")
    record: dict[str, Any] = json.loads(body.splitlines()[-1])
    return record


def assert_error_record(body: str, cause: str) -> None:
    record = last_record(body)
    assert record["details"]["finish_reason"] == "error"
    assert record["token"]["id"] == -1
    assert cause in record["token"]["error_msg"]


def endless(**extra: Any) -> dict[str, Any]:
    return {"inputs": "abc", "parameters": {"max_new_tokens": 1_000_000, "ignore_eos_token": True}, **extra}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose engine may be killed in each of several tests."""
    properties = ECHO + "option.echo_tokens_per_second=50\noption.restart_window=1\n"
    server = Server(tmp_path_factory.mktemp("lifecycle") / "m", properties)
    yield server.wait_ready()
    server.stop()


# One request fails alone


def test_failed_request_reports_its_cause_and_does_not_affect_others(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        other = pool.submit(server.invoke, {"inputs": "x" * 60, "stream": True, "parameters": {"max_new_tokens": 60}})
        answer = server.invoke({"inputs": "hello RAISE@3"})
        stream = server.invoke({"inputs": "hello RAISE@3", "stream": True})
        first = server.invoke({"inputs": "hello RAISE@1", "stream": True})
    cause = "the echo backend failed at token 3"
    assert (answer.status_code, answer.json()["code"]) == (424, 424)
    assert answer.json()["error"].startswith(cause)
    assert stream.status_code == 200
    assert [json.loads(line)["token"]["text"] for line in stream.text.splitlines()] == ["h", "e", ""]
    assert_error_record(stream.text, cause)
    assert first.status_code == 424
    assert last_record(other.result().text)["generated_text"] == "x" * 60


def test_error_in_a_stream_of_server_sent_events_is_an_event(echo_server: Server) -> None:
    body = {"inputs": "hello RAISE@3", "stream": True, "parameters": {"output_formatter": "sse"}}
    *_, last = json_events(echo_server.invoke(body).text)
    assert last["token"]["error_msg"].startswith("the echo backend failed")


# The engine dies


@pytest.mark.parametrize(
    ("fault", "cause"), [("CRASH", "crashed, as the prompt asked"), ("DIE", "engine process ended")]
)
def test_engine_death_fails_all_requests_and_a_new_engine_starts(server: Server, fault: str, cause: str) -> None:
    server.wait_ready()
    with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(3) as pool, open_streams(server, 3) as streams:
        others = [pool.submit(server.invoke, endless()) for _ in range(3)]
        server.wait_for_sequences(6)
        with server.no_restart():
            server.invoke({"inputs": f"hello {fault}@5"})
            for stream in streams:
                assert_error_record(stream.text, cause)
            for other in others:
                assert other.result().status_code == 500
                assert cause in other.result().json()["error"]
            wait_until(lambda: watch.statuses == [200, 503])
        wait_until(lambda: watch.statuses == [200, 503, 200])
    assert server.invoke({"inputs": "back again"}).json() == {"generated_text": "back again"}


@contextlib.contextmanager
def open_streams(server: Server, count: int) -> Iterator[list[requests.Response]]:
    """`count` endless answers, each of which has begun."""
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(server.invoke(endless(stream=True), stream=True)) for _ in range(count)]
        assert {stream.status_code for stream in streams} == {200}
        yield streams


def test_engine_killed_during_streams(server: Server) -> None:
    first = server.wait_ready().engine()
    with concurrent.futures.ThreadPoolExecutor(32) as pool, Watch(server) as watch:
        with open_streams(server, 32) as streams, server.no_restart():
            first.kill()
            for stream in streams:
                assert_error_record(stream.text, "the engine process ended")
            wait_until(lambda: watch.statuses[-1:] == [503])
        server.wait_ready()
        again = pool.map(lambda _: server.invoke({"inputs": "hello"}).status_code, range(32))
        assert set(again) == {200}, "one worker was ready while another rejected requests"
        wait_until(lambda: watch.statuses[-2:] == [503, 200])
    down = next(answer for answer in watch.answers if answer.status_code == 503)
    assert down.json()[server.name]["status"] == "Starting"
    assert server.engine().pid != first.pid


def test_engine_with_a_step_that_never_returns_is_killed_and_reported(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.predict_timeout=60\noption.stall_timeout=4\noption.echo_load_seconds=60\n")
    first = server.engine()
    with server.invoke({"inputs": "hello SLEEP@3", "stream": True}, stream=True) as stuck:
        lines = stuck.iter_lines()
        assert [json.loads(next(lines))["token"]["text"] for _ in range(2)] == ["h", "e"]  # the next step sleeps
        innocent = server.invoke({"inputs": "innocent", "stream": True})
        (last,) = lines
        assert json.loads(last)["details"]["finish_reason"] == "error"
        assert "predict_timeout" not in json.loads(last)["token"]["error_msg"]
        assert innocent.status_code in (500, 503)
    server.wait_restarted(first)
    assert server.invoke({"inputs": "hello"}).status_code == 200


def test_request_at_its_deadline_frees_its_place(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.predict_timeout=5\noption.max_rolling_batch_size=2\n")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # at once, because each takes as long as its deadline
        bodies = [{"inputs": "hello HANG@3", "stream": stream} for stream in (False, True)]
        answer, stream = pool.map(server.invoke, bodies)
    assert (answer.status_code, answer.json()["code"]) == (504, 504)
    assert "predict_timeout" in answer.json()["error"]
    assert_error_record(stream.text, "predict_timeout")
    server.wait_for_sequences(0)
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}


# The engine does not load


def test_loading_engine_is_reported(loading_server: Server) -> None:
    server = loading_server
    wait_until(lambda: server.ping().json()["m"]["phase"] == "loading weights: pretending")
    first = server.ping()
    assert first.status_code == 503
    answer = server.invoke({"inputs": "hello"})
    assert answer.status_code == 503
    assert "loading weights: pretending" in answer.json()["error"]
    assert int(answer.headers["Retry-After"]) > 0
    later = server.ping().json()["m"]
    assert later["status"] == "Starting"
    age = time.time() - psutil.Process(server.process.pid).create_time()
    assert first.json()["m"]["seconds"] <= later["seconds"] <= age + 1


def test_every_load_reports_how_long_its_phases_take(start_server: StartServer) -> None:
    """In the log, in `/ping` and in `/metrics`. Words of a backend's own are details, not phases."""
    server = start_server(ECHO + "option.echo_fault=slow_load\noption.echo_load_seconds=1\n")
    phases = ["starting", "importing the engine", "preparing the tokenizer", "loading weights"]
    times = load_times(server)
    assert sorted(times) == sorted(phases)
    before = time.monotonic()
    with server.no_restart():
        assert server.invoke({"inputs": "hello DIE@1"}).status_code == 500
        dead = server.ping().json()["m0"]
        assert says(dead["phase"], "process ended restarted")
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["status"] != "Healthy":
        seen.append(server.ping().json()["m0"])
        time.sleep(0.02)
    assert "seconds" not in seen[-1]
    passed = time.monotonic() - before
    assert all(document["seconds"] <= passed for document in seen[:-1])
    assert "loading weights: pretending" in {document["phase"] for document in seen[:-1]}
    assert load_times(server).keys() == times.keys()
    for load in (times, load_times(server)):
        assert load["loading weights"] >= 1
    wait_until(lambda: server.log.count('"engine ready"') == 2)  # is logged once the web workers have been told
    entries = [json.loads(line) for line in server.log.splitlines()]
    logged = [entry for entry in entries if entry["message"] == "load phase ended"]
    assert [entry["phase"] for entry in logged] == phases * 2
    totals = [entry["seconds"] for entry in entries if entry["message"] == "engine ready"]
    assert totals == pytest.approx(
        [sum(entry["seconds"] for entry in half) for half in (logged[:4], logged[4:])], abs=0.01
    )


def load_times(server: Server) -> dict[str, float]:
    """Seconds by phase, from `/metrics`. Leaves out phases that took no time."""
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    times = re.findall(r'^lmi_load_seconds\{phase="(.*)"\} (.*)$', page, re.M)
    return {phase: float(seconds) for phase, seconds in times if float(seconds)}


def test_model_loading_timeout(start_server: StartServer) -> None:
    limits = "option.echo_fault=slow_load\noption.echo_load_seconds=60\noption.model_loading_timeout=1\n"
    server = start_server(ECHO + limits, ready=False)
    assert server.process.wait(120) == 1
    error = r"^lmi: error: loading took longer than model_loading_timeout \(1 s\), the last phase was '(.*)'$"
    [phase] = re.findall(error, server.log, re.M)
    assert phase in [*LoadPhase]  # a busy machine may not get far in a second


def test_server_gives_up_if_the_engine_dies_while_loading(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.echo_fault=exit_in_load\noption.restart_limit=1\n", ready=False)
    assert server.process.wait(120) == 1
    assert "the engine died 2 times" in server.log
    assert server.log.count('"phase":"loading weights","restart_in"') == 2


# Clients that disconnect


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a batch of one sequence, and a queue of three. The last of its tests ends it."""
    properties = ECHO + "option.max_rolling_batch_size=1\njob_queue_size=3\noption.echo_tokens_per_second=20\n"
    server = Server(tmp_path_factory.mktemp("narrow") / "m", properties)
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("stream", [True, False])
def test_disconnected_client_frees_its_place(narrow_server: Server, stream: bool) -> None:
    server = narrow_server
    server.wait_for_sequences(0)
    with connect(server, request(endless(stream=stream))) as sock:
        if stream:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        server.wait_for_sequences(1)
    assert server.invoke({"inputs": "next"}).json() == {"generated_text": "next"}


def test_client_that_disconnects_before_the_first_token_frees_its_place(narrow_server: Server) -> None:
    server = narrow_server
    server.wait_for_sequences(0)
    with connect(server, request({"inputs": "hello HANG@1"})):
        server.wait_for_sequences(1)
    assert server.invoke({"inputs": "next"}).json() == {"generated_text": "next"}


# Load


def test_full_queue_rejects_requests_with_retry_after(narrow_server: Server) -> None:
    server = narrow_server
    server.wait_for_sequences(0)
    body = {"inputs": "hello"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with open_streams(server, 1):
            waiting = [pool.submit(server.invoke, body) for _ in range(3)]
            server.wait_for_sequences(1, 3)
            refused = [server.invoke(body) for _ in range(5)]
        assert [answer.result().status_code for answer in waiting] == [200] * 3
    for answer in refused:
        assert answer.status_code == 503
        assert answer.json() == {"error": Said("3 waiting job_queue_size=3"), "code": 503}
        assert answer.headers["Retry-After"] == "1"


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a batch of 256 sequences, and a queue of one."""
    properties = ECHO + "option.max_rolling_batch_size=256\njob_queue_size=1\noption.echo_tokens_per_second=10\n"
    server = Server(tmp_path_factory.mktemp("wide") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_free_places_do_not_count_as_queue(wide_server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: wide_server.invoke({"inputs": "hello"}), range(32)))
    assert {answer.status_code for answer in answers} == {200}


def test_sigterm_under_load_finishes_admitted_requests(narrow_server: Server) -> None:
    server = narrow_server
    server.wait_for_sequences(0)
    texts = ["x" * 80, *["y" * 5] * 3]  # the first one runs for four seconds, and the others wait for it
    bodies = [
        {"inputs": text, "stream": number % 2 == 0, "parameters": {"max_new_tokens": len(text), "details": True}}
        for number, text in enumerate(texts)
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.invoke, body) for body in bodies[:1]]
        server.wait_for_sequences(1)
        answers += [pool.submit(server.invoke, body) for body in bodies[1:]]
        server.wait_for_sequences(1, 3)
        server.process.send_signal(signal.SIGTERM)
        for answer, text in zip(answers, texts, strict=True):
            assert answer.result().status_code == 200
            assert last_record(answer.result().text.rstrip("\n") + "\n")["generated_text"] == text
    assert server.process.wait(120) == 0
    assert "Traceback" not in server.log


def test_ping_is_quick_with_256_streams_open(wide_server: Server) -> None:
    server = wide_server
    sockets = [connect(server, request(endless(stream=True))) for _ in range(256)]
    try:
        server.wait_for_sequences(256)
        times = []
        with requests.Session() as session:
            for _ in range(20):
                started = time.monotonic()
                assert session.get(f"{server.url}/ping", timeout=30).status_code == 200
                times.append(time.monotonic() - started)
        assert statistics.median(times) < 1, "on an idle machine, it takes a fiftieth of this"
    finally:
        for sock in sockets:
            sock.close()


# Dynamic batching, on the same engine

DYNAMIC = "option.rolling_batch=disable\noption.backend=echo\noption.echo_faults=true\n"


@pytest.fixture(scope="module")
def dynamic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with batches of four sequences, which wait four seconds for each other."""
    properties = DYNAMIC + "batch_size=4\nmax_batch_delay=4000\n"
    server = Server(tmp_path_factory.mktemp("dynamic") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_dynamic_batch_answers_lists_and_different_parameters(dynamic_server: Server) -> None:
    bodies = [{"inputs": [f"p{number}", "q"], "parameters": {"max_new_tokens": number + 1}} for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [answer.json() for answer in pool.map(dynamic_server.invoke, bodies)]
    expected = [[f"p{number}" + f"p{number}"[: number + 1], "qq"] for number in range(4)]
    assert [[item["generated_text"] for item in answer] for answer in answers] == expected


def test_dynamic_batch_starts_when_full_or_after_its_delay(dynamic_server: Server) -> None:
    started = time.monotonic()
    alone = dynamic_server.invoke({"inputs": "a", "parameters": {"return_full_text": False}})
    assert time.monotonic() - started >= 4
    assert alone.text == '[\n  {\n    "generated_text":"a"\n  }\n]'
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: dynamic_server.invoke({"inputs": "a"}), range(4))
        assert [answer.status_code for answer in answers] == [200] * 4
    assert time.monotonic() - started < 4, "they waited for the delay"


def test_dynamic_batch_errors(dynamic_server: Server) -> None:
    answer = dynamic_server.invoke({"inputs": "hello RAISE@2"})
    assert answer.status_code == 424
    assert answer.text.startswith(
        '{\n  "code":424,\n  "message":"invoke handler failure",\n  "error":"the echo backend'
    )
    answer = dynamic_server.invoke(data=b"{bad")
    assert answer.status_code == 424
    assert answer.json()["error"].startswith("the body is not valid JSON")


def test_dynamic_batch_streams(start_server: StartServer) -> None:
    server = start_server(DYNAMIC + "option.enable_streaming=true\n")
    answer = server.invoke({"inputs": ["hé", "b"], "parameters": {"max_new_tokens": 3}})
    assert answer.headers["Content-Type"] == "application/jsonlines"
    lines = [json.loads(line)["outputs"] for line in answer.text.splitlines()]
    assert ["".join(column) for column in zip(*lines, strict=True)] == ["hé", "b"]
    assert "\\u00e9" in answer.text
    failed = server.invoke({"inputs": "hello RAISE@3"})
    assert last_record(failed.text)["message"] == "invoke handler failure"
