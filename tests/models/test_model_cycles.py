"""Twenty models that come and go under load: the one that stays serves every request."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil
import pytest
from model_store import ECHO, StoreServer
from waiting import wait_until

pytestmark = pytest.mark.long

CYCLES = 8


def memory(server: StoreServer) -> int:
    """Bytes that the processes of the server share with no other process."""
    total = 0
    root = psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += process.memory_full_info().uss
    return total


@pytest.mark.parametrize("kills", [False, True])
def test_models_come_and_go_under_load(tmp_path: Path, kills: bool) -> None:
    server = StoreServer(
        tmp_path, {"stays": ECHO, "x": ECHO, "y": ECHO}, environ={"SERVING_LOAD_MODELS": "stays=stays"}
    )
    server.wait_ready()
    ended = threading.Event()
    failures: list[str] = []
    answered = [0]
    others: set[int] = set()

    def use_stays() -> None:
        while not ended.is_set():
            answer = server.generate("stays", "good morning")
            if answer.status_code != 200 or answer.json() != {"generated_text": "good morning"}:
                failures.append(f"{answer.status_code} {answer.text}")
            answered[0] += 1

    def use_others() -> None:
        while not ended.is_set():
            for name in ("x", "y"):
                others.add(server.generate(name, "hello").status_code)

    def cycle(name: str) -> None:
        for number in range(CYCLES):
            loaded = server.ask("POST", f"/models?url={name}")
            assert loaded.status_code == 200, loaded.text
            if kills and number % 2:
                victims = [engine for engine in server.engines() if engine.pid != stays.pid]
                with contextlib.suppress(IndexError, psutil.NoSuchProcess):
                    victims[0].kill()
            else:
                time.sleep(0.1)
            assert server.ask("DELETE", f"/models/{name}").status_code == 200

    try:
        (stays,) = server.engines()
        users = [threading.Thread(target=target) for target in (use_stays, use_stays, use_others)]
        for user in users:
            user.start()
        server.ask("POST", "/models?url=x")  # what a first load leaves behind in the manager does not count
        server.ask("DELETE", "/models/x")
        before = memory(server)
        errors: list[BaseException] = []

        def run(name: str) -> None:
            try:
                cycle(name)
            except BaseException as error:
                errors.append(error)
                raise

        cycles = [threading.Thread(target=run, args=(name,)) for name in ("x", "y")]
        for thread in cycles:
            thread.start()
        for thread in cycles:
            thread.join()
        ended.set()
        for user in users:
            user.join()
        assert not errors
        assert not failures
        assert answered[0] > CYCLES
        assert 200 in others
        assert others <= {200, 404, 424, 503} | ({500} if kills else set()), others  # 500: their engine was killed
        assert server.engines() == [stays]
        assert [path.name for path in server.temporary.glob("lmi-*/model-*")] == ["model-1"]
        wait_until(lambda: memory(server) < before + (30 << 20), timeout=30)
        with_descriptors = [psutil.Process(server.web_worker().pid).num_fds(), server.manager().num_fds()]
        assert max(with_descriptors) < 100
    finally:
        ended.set()
        server.stop()
