"""Several engines behind the same web workers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from capabilities import capabilities
from engine_thread import Engine, texts_of
from prompts import encoded
from serving import Server, StartServer
from waiting import wait_until

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.request import EncodedPrompt, GenerationRequest
from lmi_handlers.engine.client import EngineClient, InFlightRequest
from lmi_handlers.engine.heartbeat import HeartbeatReader
from lmi_handlers.engine.messages import Loading, Ready
from lmi_handlers.engine.replicas import Replicas, ReplicaStatus
from lmi_handlers.engine.sent_requests import SentRequests
from lmi_handlers.engine.status import EngineState, EngineStatus


def engines(server: Server) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "lmi_handlers.engine.process" in child.cmdline():
                found.append(child)
    return found


def engine_states(server: Server) -> list[str]:
    """The states of the engines as the web worker knows them."""
    (model,) = requests.get(f"{server.url}/console/data/state", timeout=20).json()["models"]
    return [engine["state"] for engine in model["engines"]]


def test_an_engine_that_dies_costs_its_own_requests_only(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\nminWorkers=2\noption.echo_tokens_per_second=20\n")
    wait_until(lambda: engine_states(server) == ["ready", "ready"])
    endless = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 100_000, "ignore_eos": True}}
    received: list[list[dict[str, Any]]] = [[] for _ in range(6)]
    seen = threading.Event()

    def read(number: int) -> None:
        for line in streams[number].iter_lines():
            received[number].append(json.loads(line))
            if seen.is_set():
                return

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        streams: list[requests.Response] = []
        for number in range(6):  # one by one: two at the same time may choose the same engine
            streams.append(stack.enter_context(server.invoke(endless, stream=True)))
            server.wait_for_sequences(number + 1)
        reading = [pool.submit(read, number) for number in range(6)]
        engines(server)[0].kill()
        wait_until(lambda: sum(future.done() for future in reading) == 3)
        for _ in range(20):
            assert server.ping().status_code == 200
        server.wait_for_sequences(3)
        seen.set()  # the others go on, and end with their next records
    errors = [records[-1]["token"].get("error_msg") for records in received]
    assert sorted(error is not None for error in errors) == [False] * 3 + [True] * 3
    assert [server.invoke({"inputs": "x"}).status_code for _ in range(8)] == [200] * 8
    wait_until(lambda: len(engines(server)) == 2)


def test_the_server_ends_once_all_engines_have_been_given_up(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\nminWorkers=2\noption.restart_limit=0\n")
    wait_until(lambda: engine_states(server) == ["ready", "ready"])
    first, second = engines(server)
    first.kill()
    wait_until(lambda: "giving up" in server.log and sorted(engine_states(server)) == ["ready", "starting"])
    assert server.invoke({"inputs": "x"}).status_code == 200
    assert server.ping().status_code == 200
    second.kill()
    assert server.process.wait(120) == 1


SLOW = b" SLEEP@1 " * 3


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[list[Engine], Replicas]]:
    both = [Engine(tmp_path / f"engine-{number}.sock") for number in range(2)]
    for engine in both:
        engine.start()
    replicas = Replicas([engine.path for engine in both], lambda announcement: None, 60.0)
    replicas.start()
    wait_until(lambda: all(part.accepts for part in replicas.status.parts))
    yield both, replicas
    replicas.close()
    for engine in both:
        engine.stop()


def submit(replicas: Replicas, prompt: bytes) -> InFlightRequest:
    request = GenerationRequest(request_id="r", prompts=())
    return replicas.submit(encoded(prompt), request, Deadline(time.monotonic() + 60))


def test_request_that_is_repeated_goes_to_the_engine_that_has_it(
    pair: tuple[list[Engine], Replicas], tmp_path: Path
) -> None:
    """Also from another web worker, and if the other engine has less to do."""
    both, replicas = pair
    other_worker = Replicas([engine.path for engine in both], lambda announcement: None, 60.0)
    other_worker.start()
    wait_until(lambda: all(part.accepts for part in other_worker.status.parts))
    deadline = Deadline(time.monotonic() + 60)
    prompts = [encoded(SLOW + b"%d" % number) for number in range(4)]
    with contextlib.ExitStack() as stack:
        for prompt in prompts:
            for worker, joins in ((replicas, False), (other_worker, True), (replicas, True)):
                request = GenerationRequest(request_id="r", prompts=(), identity=b"call")
                started = stack.enter_context(worker.submit(prompt, request, deadline))
                next(iter(started))
                assert started.joined is joins
    other_worker.close()


def test_sent_requests_that_are_closed_write_no_other_file(tmp_path: Path) -> None:
    [prompt] = encoded(b"abc")
    sent, again = SentRequests(tmp_path / "sent"), SentRequests(tmp_path / "sent")
    sent.note(b"a", prompt, 1)
    assert (again.engine_of(b"a", prompt), again.engine_of(b"b", prompt)) == (1, None)
    sent.close()
    with (tmp_path / "other").open("w+b") as other:  # which has its descriptor now
        sent.note(b"a", prompt, 2)
        assert sent.engine_of(b"a", prompt) is None
        assert other.read() == b""
    assert again.engine_of(b"a", prompt) == 1
    again.close()


def test_requests_are_spread_over_the_engines(pair: tuple[list[Engine], Replicas]) -> None:
    _, replicas = pair
    chosen: Counter[EngineClient] = Counter()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            chosen[replicas.choose(encoded(SLOW))] += 1
            stack.enter_context(submit(replicas, SLOW))
    assert sorted(chosen.values()) == [2, 2]


def test_prompts_with_the_same_beginning_go_to_the_same_engine_while_it_has_room(
    pair: tuple[list[Engine], Replicas],
) -> None:
    _, replicas = pair
    beginnings = [bytes([code]) * 300 for code in range(ord("a"), ord("q"))]
    chosen = [{replicas.choose(encoded(text + b"x" * turn)) for turn in range(3)} for text in beginnings]
    assert all(len(engines) == 1 for engines in chosen)
    assert len(set.union(*chosen)) == 2, "other beginnings go to the other engine"
    crowd = set()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            crowd.add(replicas.choose(encoded(beginnings[0] + SLOW)))
            stack.enter_context(submit(replicas, beginnings[0] + SLOW))
    assert len(crowd) == 2, "one engine is not overloaded for what it has cached"


def test_while_an_adapter_is_replaced_its_requests_go_to_engines_with_the_same_files(
    pair: tuple[list[Engine], Replicas],
) -> None:
    """Its answer would be joined and continued as one of these files."""
    both, replicas = pair

    def load(engine: Engine, files: str) -> None:
        loaded = capabilities(vocab_size=257, adapters=("a",), adapter_digests={"a": files})
        engine.server.announce(Ready("", loaded))

    def prompt(files: str) -> EncodedPrompt:
        return EncodedPrompt([*SLOW], adapter="a", adapter_digest=files)

    def submit_again(files: str) -> InFlightRequest:
        request = GenerationRequest(request_id="r", prompts=(), identity=b"call")
        return replicas.submit([prompt(files)], request, Deadline(time.monotonic() + 60))

    load(both[0], "new")
    load(both[1], "old")
    wait_until(lambda: replicas.choose([prompt("new")]) is not replicas.choose([prompt("old")]))
    # Until both have announced theirs, a choice may be by load alone.
    wait_until(lambda: all(replicas.choose([prompt(files)]).has_adapter(prompt(files)) for files in ("new", "old")))
    new, old = replicas.choose([prompt("new")]), replicas.choose([prompt("old")])
    assert replicas.choose([prompt("other")]) in (new, old)
    with contextlib.ExitStack() as stack:
        for files, client in (("new", new), ("new", new), ("old", old), ("new", new)):
            assert replicas.choose([prompt(files)]) is client
            assert replicas.choose([EncodedPrompt([*SLOW]), prompt(files)]) is client
            stack.enter_context(submit_again(files))
        assert (new.load, old.load) == (3, 1)
        load(both[1], "new")
        wait_until(lambda: replicas.choose([prompt("new")]) is old)


def test_the_model_is_ready_while_any_engine_is(pair: tuple[list[Engine], Replicas]) -> None:
    both, replicas = pair
    both[0].server.announce(Loading("restarting", 0.0))
    wait_until(lambda: not replicas.status.parts[0].accepts)
    assert replicas.state is EngineState.READY
    assert texts_of(submit(replicas, b"a")) == [b"a"]


def test_a_request_does_not_wait_for_an_engine_that_is_stalled(tmp_path: Path) -> None:
    """Such an engine is ready and accepts nothing. Waiting for it must not keep the event loop busy."""
    status = EngineStatus(StalledHeartbeat(tmp_path / "none"), 60.0)
    status.ready()
    began = time.thread_time()
    for _ in range(3):
        ReplicaStatus([status]).wait_ready(0.2)
        ReplicaStatus([status, status]).wait_ready(0.2)
    assert time.thread_time() - began < 0.2


class StalledHeartbeat(HeartbeatReader):
    def suspicion(self, stall_timeout: float) -> str | None:
        return "it makes no progress"
