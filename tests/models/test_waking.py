"""A model that sleeps: what wakes it, and what becomes of the requests that wait for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from facts import Said, says
from model_store import ECHO, StoreServer
from waiting import wait_until

SLOW = ECHO + "option.echo_fault=slow_load\noption.echo_load_seconds={}\n"


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """A server with a model that sleeps, and wakes up in `request.param` seconds. Two requests may wait for it."""
    server = StoreServer(tmp_path, {"slow": ECHO}, environ={"SERVING_JOB_QUEUE_SIZE": "2", "LMI_WORKERS": "1"})
    server.wait_ready()
    assert server.ask("PUT", "/models/slow?min_worker=0").status_code == 200
    wait_until(lambda: server.states() == {"slow": "Sleeping"} and not server.engines())
    (server.store / "slow" / "serving.properties").write_text(SLOW.format(request.param))
    yield server
    server.stop()


@pytest.mark.parametrize("server", [4], indirect=True)
def test_only_a_post_wakes_a_model_and_few_requests_wait(server: StoreServer) -> None:
    for path in ("/info", "/", "/openapi.json"):
        assert server.ask("GET", path).status_code == 503
    assert server.ask("GET", "/health").status_code == 200  # the server's own
    assert server.states() == {"slow": "Sleeping"}
    with ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(server.generate, "slow") for _ in range(3)]
        wait_until(lambda: server.states() == {"slow": "Starting"})
        assert server.ping().status_code == 200  # a model that wakes up will serve
        answers = sorted((future.result() for future in waiting), key=lambda answer: answer.status_code)
    assert [answer.json() for answer in answers[:2]] == [{"generated_text": "hello"}] * 2
    assert (answers[2].status_code, says(answers[2].json()["message"], "2 wait wake")) == (503, True)
    assert int(answers[2].headers["Retry-After"]) > 0


@pytest.mark.long
@pytest.mark.parametrize("server", [60], indirect=True)
def test_requests_that_wait_are_answered_when_the_server_ends(server: StoreServer) -> None:
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(server.generate, "slow") for _ in range(3)]
        wait_until(lambda: any(future.done() for future in asked))  # the third is refused because two wait
        server.process.send_signal(signal.SIGTERM)
        answers = [future.result() for future in asked]
    assert [answer.status_code for answer in answers] == [503] * 3
    messages = sorted(answer.json()["message"] for answer in answers)
    assert messages == [Said("2 wait wake"), *[Said("shutting down")] * 2]


def test_models_wait_for_room_and_none_is_refused(tmp_path: Path) -> None:
    """Four models have two places. All are asked at the same time, over and over, and each waits for its turn."""
    names = [f"m{number}" for number in range(4)]
    server = StoreServer(
        tmp_path, dict.fromkeys(names, ECHO), environ={"LMI_MAX_LOADED_MODELS": "2", "LMI_WORKERS": "2"}
    )
    try:
        server.wait_ready()
        wait_until(lambda: sorted(server.states().values()) == ["Healthy"] * 2 + ["Sleeping"] * 2)
        with ThreadPoolExecutor(12) as clients:
            answers = [*clients.map(server.generate, names * 3)]
        assert [answer.status_code for answer in answers] == [200] * 12
        assert len(server.engines()) <= 2
    finally:
        server.stop()


def test_a_request_waits_for_room_as_long_as_it_may(tmp_path: Path) -> None:
    environ = {"LMI_MAX_LOADED_MODELS": "1", "PREDICT_TIMEOUT": "6", "LMI_WORKERS": "1"}
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO}, environ=environ)
    try:
        server.wait_ready()
        states = server.states()
        awake, asleep = sorted(states, key=states.__getitem__)
        over = threading.Event()

        def keep_busy() -> None:
            while not over.is_set():
                server.generate(awake, "x HANG@2")

        with ThreadPoolExecutor(1) as clients:
            busy = clients.submit(keep_busy)
            try:
                wait_until(lambda: server.sequences() == (1, 0))
                answer = server.generate(asleep)
            finally:
                over.set()
            busy.result()
        assert answer.status_code == 507
        assert says(answer.text, "1 models loaded in use")
    finally:
        server.stop()
