"""Real vLLM on two nodes of a real Ray: the answers of an engine in one process, and a node that is lost and replaced."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from ray_cluster import RayCluster
from serving import Server
from waiting import Watch, wait_until

from backends.vllm.ray.inquiry import preview
from lmi_handlers.ray.environ import node_environ

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.needs("ray"), pytest.mark.model, pytest.mark.timeout(1200)]

QUICK = (
    "option.rolling_batch=vllm\noption.dtype=fp32\noption.enforce_eager=true\n"
    "option.kv_cache_memory_bytes=128M\noption.max_model_len=1024\noption.tensor_parallel_degree=2\n"
    "option.distributed_executor_backend=ray\n"
)
PROMPTS = ("hello", "The capital of France is", "def main():", "1 2 3 4 5 6 7")
START_SECONDS = 500  # several processes import vLLM; on an idle machine, a tenth of it


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> list[str]:
    """The answers of one process. It is not vLLM's, which starts slowly."""
    own = f"option.rolling_batch=scheduler\noption.dtype=fp32\noption.model_id={tiny_llama}\n"
    server = Server(tmp_path_factory.mktemp("one") / "m", own)
    try:
        return answers(server.wait_ready(START_SECONDS))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with one core each."""
    with RayCluster(num_cpus=1, environ=node_environ()) as started:
        started.add_node(num_cpus=1)
        yield started


@pytest.fixture(scope="module")
def on_nodes(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("two") / "m", properties(tiny_llama), environ=environ_of(cluster))
    yield server.wait_ready(START_SECONDS)
    server.stop()


def properties(model: Path) -> str:
    return f"{QUICK}option.model_id={model}\n"


def environ_of(cluster: RayCluster) -> dict[str, str]:
    return cluster.environ | {"RAY_ADDRESS": cluster.address}


def answers(server: Server) -> list[str]:
    bodies = [{"inputs": prompt, "parameters": {"max_new_tokens": 12}} for prompt in PROMPTS]
    return [server.invoke(body).json()["generated_text"] for body in bodies]


def test_check_says_what_is_asked_for_and_what_there_is(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the command, which imports vLLM: `test_vllm.py` has it, where no cluster answers."""
    for name, value in environ_of(cluster).items():
        monkeypatch.setenv(name, value)
    said, answered = preview(2, gpus=False)
    says = "On Ray, 2 workers with 1 CPU each will be asked for. The cluster has 2 nodes with 2 CPUs in all, of which 2 are"
    assert (said.startswith(says), answered) == (True, True), said


def test_two_nodes_answer_as_one_process(expected: list[str], cluster: RayCluster, on_nodes: Server) -> None:
    """With these random weights in float32, the order of a sum over two halves changes no greedy token."""
    assert [len(node.processes("RayWorker")) for node in cluster.nodes] == [1, 1]
    assert answers(on_nodes) == expected
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: answers(on_nodes), range(2))) == [expected] * 2


def test_a_lost_node_ends_the_engine_which_returns_with_a_node(
    expected: list[str], cluster: RayCluster, on_nodes: Server
) -> None:
    body: dict[str, Any] = {"inputs": "hello", "parameters": {"max_new_tokens": 900, "ignore_eos_token": True}}
    lost = cluster.nodes[1]
    with Watch(on_nodes) as watch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        stream = pool.submit(on_nodes.invoke, body | {"stream": True}, timeout=300)
        other = pool.submit(on_nodes.invoke, body, timeout=300)
        on_nodes.wait_for_sequences(2)
        lost.kill()
        cause = f"on node {lost.address} has died"
        assert cause in last_record(stream.result())["token"]["error_msg"]
        assert other.result().status_code == 500
        assert cause in other.result().json()["error"]
        wait_until(lambda: watch.statuses[-1] == 503, 60)
        says = (
            "waiting for resources: 2 workers with 1 CPU each are asked for, and the Ray cluster has 1 node with 1 CPU"
        )
        wait_until(lambda: says in watch.answers[-1].text, START_SECONDS)
        cluster.add_node(num_cpus=1)
        on_nodes.wait_ready(START_SECONDS)
    assert watch.statuses[-2:] == [503, 200]
    assert answers(on_nodes) == expected


def last_record(answer: requests.Response) -> dict[str, Any]:
    """The last record of a stream, which is whole."""
    assert answer.status_code == 200
    assert answer.text.endswith("\n")
    record: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    return record
