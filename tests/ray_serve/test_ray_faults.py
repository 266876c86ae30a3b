"""Replicas on a Ray cluster of several nodes, parts of which die under load."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest
import requests
from ray_cluster import RayCluster
from serving import Server, free_port

from lmi_handlers.ray.environ import ray_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROPERTIES = "option.rolling_batch=echo\noption.max_model_len=4096\noption.echo_tokens_per_second=60\n"
WORDS = "The quick brown fox jumps over the lazy dog. "
ENGINE = "lmi_handlers.engine.process"


class Result(msgspec.Struct):
    """What became of one request."""

    request_id: str
    started: float
    took: float = 0.0
    error: str = ""

class Load:
    """Clients that stream one answer after the other, and one that sends short requests. Every answer is compared."""

    def __init__(self, server: Server, streams: int = 6) -> None:
        self.results: list[Result] = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(True,)) for _ in range(streams)]
        self._threads.append(threading.Thread(target=self._repeat, args=(False,)))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, streams: bool) -> None:
        while not self._stop.is_set():
            result = Result(uuid.uuid4().hex, time.monotonic())
            text = f"{result.request_id} {WORDS * 4 if streams else ''}"
            try:
                result.error = self._ask(text, result.request_id, streams)
            except requests.RequestException as error:
                result.error = repr(error)
            result.took = time.monotonic() - result.started
            self.results.append(result)
            if not streams: time.sleep(0.05)

    def _ask(self, text: str, request_id: str, streams: bool) -> str:
        body: dict[str, Any] = {"inputs": text, "parameters": {"max_new_tokens": 2000 if streams else 5}, "stream": streams}
        with requests.post(f"{self._server.url}/invocations", json=body, headers={"X-Request-Id": request_id}, timeout=60, stream=True) as answer:
            whole = answer.content
        if answer.status_code != 200:
            return f"{answer.status_code} {whole[:200]!r}"
        last = msgspec.json.decode(whole.splitlines()[-1])
        if last.get("generated_text") != (text if streams else text[:5]):
            return f"not whole: {last}"
        return ""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster(num_cpus=0, environ=ray_environ(60)) as cluster:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        yield cluster


@pytest.fixture(scope="module")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, port = tmp_path_factory.mktemp("ray") / "m", free_port()
    command = [sys.executable, "-m", "lmi_handlers.cli", "ray", "serve", "--model-dir", str(directory), "--num-cpus"]
    command += ["1", "--replicas", "2", "--host", "127.0.0.1", "--port", str(port), "--address", cluster.address]
    command += ["--proxies", "HeadOnly"]
    server = Server(directory, PROPERTIES, command=command, port=port, environ=cluster.environ)
    server.wait_ready(200)
    yield server
    server.process.terminate()
    print(server.process.wait(60))
    print(server.log[-3000:])


def show(load: Load, when: float) -> None:
    bad = [r for r in load.results if r.error]
    print(f"{len(load.results)} requests, {len(bad)} failed; longest {max(r.took for r in load.results):.2f}")
    for r in bad: print(f"   {r.started-when:+.2f} took {r.took:.2f} {r.error[:150]}")
    good = sorted(r.started + r.took - when for r in load.results if not r.error and r.started > when)
    print("first good after", good[:5])


def test_node(cluster, server):
    cluster.wait_for_processes(ENGINE, 2)
    print([(n.address, len(n.processes(ENGINE))) for n in cluster.nodes])
    with Load(server) as load:
        time.sleep(4)
        t = time.monotonic(); cluster.nodes[2].kill(); print("kill took", time.monotonic() - t)
        cluster.wait_for_processes(ENGINE, 2)
        print("replaced after", time.monotonic() - t)
        time.sleep(4)
    show(load, t)

def test_replica(cluster, server):
    cluster.wait_for_processes(ENGINE, 2)
    time.sleep(4)
    print([(n.address, len(n.processes(ENGINE))) for n in cluster.nodes])
    with Load(server) as load:
        time.sleep(4)
        t = time.monotonic(); cluster.nodes[1].processes("ray::ServeReplica")[0].kill()
        time.sleep(1)
        cluster.wait_for_processes(ENGINE, 2)
        print("replaced after", time.monotonic() - t)
        time.sleep(4)
    show(load, t)

def test_server(cluster, server):
    time.sleep(4)
    with Load(server) as load:
        time.sleep(4)
        t = time.monotonic(); cluster.nodes[1].processes(ENGINE)[0].parents()[1].kill()
        time.sleep(1)
        cluster.wait_for_processes(ENGINE, 2)
        print("replaced after", time.monotonic() - t)
        time.sleep(4)
    show(load, t)
