"""What a model's code raises ends one request, even what Python means for the whole process, such as `SystemExit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from serving import Server
from waiting import wait_until

COMMON = """
import asyncio, os
from djl_python import Output


class Own(BaseException):
    pass


KINDS = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "Own": Own("a cause"),
    "CancelledError": asyncio.CancelledError(),
}


def author(kind):
    raise KINDS[kind]
"""

ASYNCHRONOUS = (
    COMMON
    + """
released = asyncio.Event()


async def items(kind):
    yield "first\\n"
    if kind:
        author(kind)
    await released.wait()
    yield "last\\n"


async def later(kind):
    await asyncio.sleep(0)
    author(kind)


async def handle(inputs):
    if inputs.is_empty():
        return None
    case, kind = inputs.get_property("X-Case"), inputs.get_as_string()
    if case == "wait":
        await released.wait()
        return Output().add(str(os.getpid()))
    if case == "waiting stream":
        return Output().add_stream_content(items(None), None)
    if case == "release":
        released.set()
    if case == "raise":
        author(kind)
    if case == "task":
        await asyncio.create_task(later(kind))
    if case == "stray":
        asyncio.create_task(later(kind))
    if case == "stop":
        asyncio.get_running_loop().stop()
    if case == "stream":
        return Output().add_stream_content(items(kind), None)
    return Output().add(str(os.getpid()))
"""
)

SYNCHRONOUS = (
    COMMON
    + """
def items(kind):
    yield "first\\n"
    author(kind)


def handle(inputs):
    if inputs.is_empty():
        return None
    case, kind = inputs.get_property("X-Case"), inputs.get_as_string()
    if case == "raise":
        author(kind)
    if case == "stream":
        return Output().add_stream_content(items(kind), None)
    return Output().add(str(os.getpid()))
"""
)

TEXTS = {
    "SystemExit": "SystemExit: 3",
    "KeyboardInterrupt": "KeyboardInterrupt",
    "GeneratorExit": "GeneratorExit",
    "Own": "Own: a cause",
    "CancelledError": "CancelledError",
}


def call(server: Server, case: str, kind: str = "") -> requests.Response:
    return requests.post(f"{server.url}/invocations", kind or "x", headers={"X-Case": case}, timeout=60)


@pytest.fixture(scope="module", params=["asynchronous", "synchronous"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory, ASYNCHRONOUS)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory, SYNCHRONOUS)
    yield server.wait_ready()
    server.stop()


def start(tmp_path_factory: pytest.TempPathFactory, code: str) -> Server:
    directory = tmp_path_factory.mktemp("code") / "m"
    directory.mkdir()
    (directory / "model.py").write_text(code)
    return Server(directory, "maxWorkers=1\n")


def exceptions(server: Server) -> list[str]:
    """The tracebacks in the log."""
    entries = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [entry["exception"] for entry in entries if entry.get("exception")]


@pytest.mark.parametrize("kind", TEXTS)
def test_it_ends_its_request_with_the_cause_and_the_process_stays(server: Server, kind: str) -> None:
    before, logged = call(server, "pid").text, len(exceptions(server))
    answer = call(server, "raise", kind)
    assert (answer.status_code, answer.json()["error"]) == (424, f"handle raised {TEXTS[kind]}")
    wait_until(lambda: len(exceptions(server)) > logged)
    traceback = exceptions(server)[-1]
    assert "in author" in traceback
    assert "lmi_handlers" not in traceback
    assert call(server, "pid").text == before


@pytest.mark.parametrize("kind", TEXTS)
def test_it_ends_its_stream_with_a_record(server: Server, kind: str) -> None:
    before = call(server, "pid").text
    first, last = call(server, "stream", kind).content.splitlines()
    assert first == b"first"
    assert json.loads(last) == {"error": f"handle raised {TEXTS[kind]}", "code": 424}
    assert call(server, "pid").text == before


def test_other_calls_of_the_event_loop_go_on(asynchronous: Server) -> None:
    before = call(asynchronous, "pid").text
    asynchronous.wait_for_sequences(0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(call, asynchronous, "wait")
        streaming = threads.submit(call, asynchronous, "waiting stream")
        asynchronous.wait_for_sequences(2)
        try:
            for kind, text in TEXTS.items():
                for case in ("raise", "task"):
                    answer = call(asynchronous, case, kind)
                    assert (answer.status_code, answer.json()["error"]) == (424, f"handle raised {text}"), case
                assert call(asynchronous, "stray", kind).text == before  # its task is nobody's
                assert call(asynchronous, "stop").text == before
        finally:
            call(asynchronous, "release")
        assert waiting.result().text == before
        assert streaming.result().content == b"first\nlast\n"
    wait_until(lambda: "a task of the model's code failed" in asynchronous.log)
    wait_until(lambda: "the model's code has stopped the event loop, which goes on" in asynchronous.log)
