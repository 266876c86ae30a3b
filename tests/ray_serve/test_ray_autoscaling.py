"""A cluster of two nodes that grows from one replica to four under a load, and shrinks again without cutting a stream.

The number of replicas is that on the page with the metrics of all.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from ray_cluster import RayCluster
from serving import Server, free_port

from lmi_handlers.ray.environ import node_environ, ray_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BATCH = 4
RATE = 20  # tokens per second of a sequence; a token is a character
PROPERTIES = (
    "option.rolling_batch=echo\noption.max_model_len=4096\njob_queue_size=200\n"
    f"option.max_rolling_batch_size={BATCH}\noption.echo_tokens_per_second={RATE}\n"
)
ENGINE = "lmi_handlers.engine.process"

Samples = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    environ = ray_environ(300) | node_environ() | {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
    with RayCluster(num_cpus=2, environ=environ) as cluster:
        cluster.add_node(num_cpus=2)
        yield cluster


@pytest.fixture(scope="module")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, port = tmp_path_factory.mktemp("ray") / "m", free_port()
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "ray", "serve", "--address", cluster.address]
    command += ["--model-dir", str(directory), "--num-cpus", "1", "--min-replicas", "1", "--max-replicas", "4"]
    command += ["--upscale-delay-s", "1", "--downscale-delay-s", "2", "--env", "LOG_FORMAT=json"]
    command += ["--port", str(port), "--proxies", "HeadOnly"]
    server = Server(directory, PROPERTIES, command=command, port=port, environ=dict(cluster.environ))
    try:
        yield server.wait_ready(400)
    finally:
        server.process.kill()  # the cluster is, too: test_ray_replicas.py shows how it ends in order
        server.process.wait(90)


def stream(server: Server, length: int) -> None:
    """Read a stream to its end. Fails if it is cut or refused."""
    text = "".join(chr(ord("a") + number % 26) for number in range(length))
    body = {"inputs": text, "parameters": {"max_new_tokens": 4000}, "stream": True}
    with requests.post(f"{server.url}/invocations", json=body, stream=True, timeout=300) as answer:
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.iter_lines() if line]
    assert lines[-1]["generated_text"] == text


class Clients:
    """Clients that send one request after the other, until they are told to stop. The first failure is raised at the end."""

    def __init__(self, server: Server, number: int, seconds: int) -> None:
        self._server = server
        self._length = seconds * RATE
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(number)
        self._running = [self._pool.submit(self._run) for _ in range(number)]

    def _run(self) -> int:
        answers = 0
        while not self._stop.is_set():
            stream(self._server, self._length)
            answers += 1
        return answers

    def stop(self) -> int:
        """Let the last requests finish, and return how many answers there were."""
        self._stop.set()
        with self._pool:
            return sum(each.result() for each in self._running)


def scraped(server: Server) -> Samples:
    """The page of all replicas. Empty if one of them or Ray has not answered in time, as on a busy machine."""
    answer = requests.get(f"{server.url}/metrics", timeout=30)
    if answer.status_code == 503:
        return {}
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found if found["lmi_replicas_missing"][0][1] == 0 else {}


def number_of_replicas(server: Server) -> int:
    return len({labels["replica"] for labels, _ in scraped(server).get("vllm:num_requests_running", ())})


def nodes_with_replicas(server: Server) -> set[str]:
    return {labels["node"] for labels, _ in scraped(server).get("vllm:num_requests_running", ())}


def wait_until(condition: Callable[[], bool], server: Server, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, server.log
        time.sleep(0.5)


def test_one_replica_becomes_four_and_one_again(cluster: RayCluster, server: Server) -> None:
    wait_until(lambda: number_of_replicas(server) == 1, server)
    few = Clients(server, 3, seconds=8)  # one replica can answer them; there is always one on most replicas
    many = Clients(server, 3 * BATCH, seconds=2)
    wait_until(lambda: number_of_replicas(server) == 4, server)
    wait_until(lambda: nodes_with_replicas(server) == {node.address for node in cluster.nodes}, server)
    assert many.stop() >= 3 * BATCH
    wait_until(lambda: number_of_replicas(server) == 1, server)
    cluster.wait_for_processes(ENGINE, 1, 240)
    assert few.stop() >= 3
