"""A Ray cluster of three nodes that grows and shrinks with the load, and parts of which die or are replaced under it.

Each test goes on where the last one ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import csv
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from facts import says
from paths import ROOT
from prometheus_client.parser import text_string_to_metric_families
from ray_cluster import RayCluster, RayNode
from ray_load import MixedLoad
from serving import ENVIRON, Server, free_port
from waiting import wait_until

from lmi_handlers.core.log import REPLICA_VARIABLE
from lmi_handlers.ray.environ import node_environ, ray_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PREDICT_TIMEOUT = 60
PROPERTIES = f"option.rolling_batch=echo\noption.echo_tokens_per_second=30\noption.predict_timeout={PREDICT_TIMEOUT}\n"
ENGINE = "lmi_handlers.engine.process"
SLOW_MACHINE = 30.0
"""Seconds within which new requests must be served after a fault. On a machine that has time, they are within 5."""

AT_ONCE = 8 + 4
"""How many requests a fault can hit: all clients', and those that HAProxy sends to the dead part before it knows."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    environ = ray_environ(PREDICT_TIMEOUT) | node_environ() | {"RAY_SERVE_HAPROXY_STATS_PORT": str(free_port())}
    with RayCluster(num_cpus=4, environ=environ) as cluster:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        yield cluster


@pytest.fixture(scope="module")
def port() -> int:
    """Serve stays on the cluster when an application ends, and does not listen elsewhere for the next one."""
    return free_port()


@contextlib.contextmanager
def deployed(
    cluster: RayCluster, directory: Path, properties: str, port: int, *arguments: str, **environ: str
) -> Iterator[Server]:
    """`lmi ray serve`, which deletes its application in the end."""
    command = command_of(cluster, str(directory), port, *arguments)
    server = Server(directory, properties, command=command, port=port, environ=cluster.environ | environ)
    try:
        yield server.wait_ready(400)
        if server.process.poll() is None:
            end(server, signal.SIGTERM)
    finally:
        server.process.kill()
        server.process.wait(90)


def end(server: Server, how: signal.Signals) -> None:
    server.process.send_signal(how)
    assert server.process.wait(180) == 0, server.log


@pytest.fixture(scope="module")
def server(cluster: RayCluster, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("ray") / "m"
    with deployed(cluster, directory, PROPERTIES, port, "--replicas", "3", RAY_DEDUP_LOGS="0") as server:
        wait_for_replicas(cluster, 3)
        yield server


def command_of(cluster: RayCluster, directory: str, port: int, *arguments: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.commands.cli",
        "ray",
        "serve",
        "--model-dir",
        directory,
        "--num-cpus",
        "1",
    ]
    command += ["--address", cluster.address, "--port", str(port), "--proxies", "HeadOnly"]
    return [*command, *arguments]


def wait_for_replicas(cluster: RayCluster, at_least: int) -> None:
    """Wait until HAProxy sends requests to so many replicas."""
    wait_until(lambda: len(replicas_up(cluster) or ()) >= at_least, 180)


def replicas_up(cluster: RayCluster) -> set[str] | None:
    """The replicas to which HAProxy sends requests. None if it does not say."""
    url = f"http://127.0.0.1:{cluster.variables['RAY_SERVE_HAPROXY_STATS_PORT']}/stats;csv"
    with contextlib.suppress(requests.RequestException):  # it is just being replaced
        rows = csv.DictReader(requests.get(url, timeout=5).text.removeprefix("# ").splitlines())
        up = (row for row in rows if row["status"].startswith("UP"))
        return {row["svname"] for row in up if row["svname"].startswith("SERVE_REPLICA")}
    return None


def is_any_left_out(cluster: RayCluster, before: set[str]) -> bool:
    up = replicas_up(cluster)
    return up is not None and not before <= up


def engines(cluster: RayCluster) -> set[psutil.Process]:
    return {process for node in cluster.nodes for process in node.processes(ENGINE)}


def node_with_a_replica(cluster: RayCluster) -> RayNode:
    return next(node for node in cluster.nodes if node is not cluster.head and node.processes(ENGINE))


def engine_with_streams(cluster: RayCluster, server: Server) -> psutil.Process:
    """Wait for an engine on the head node that has several streams, and so has some for the next moments."""
    found: list[psutil.Process] = []

    def look() -> list[psutil.Process]:
        page = requests.get(f"{server.url}/metrics", timeout=60).text
        running = re.findall(r'^vllm:num_requests_running\{.*replica="(\w+)".*\} (\S+)$', page, re.MULTILINE)
        busy = {name for name, value in running if float(value) >= 2}
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found.extend(each for each in cluster.head.processes(ENGINE) if each.environ()[REPLICA_VARIABLE] in busy)
        return found

    wait_until(look, 120)
    return found[0]


def report(what: str, load: MixedLoad, began: float, seconds: float = 0.0) -> None:
    print(f"{what}: new requests served after {seconds:.2f} s; {len(load.failed)} of {len(load.results)} failed")
    for result in load.failed:
        print(f"  {result.started - began:+.2f} to {result.ended - began:+.2f} s: {result.error[:120]}")


BATCH = 4
RATE = 20  # tokens per second of a sequence; a token is a character
OF_SMALL_BATCHES = (
    "option.rolling_batch=echo\noption.max_model_len=4096\njob_queue_size=200\n"
    f"option.max_rolling_batch_size={BATCH}\noption.echo_tokens_per_second={RATE}\n"
    f"option.predict_timeout={PREDICT_TIMEOUT}\n"
)


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


def replicas_of(server: Server) -> dict[str, str]:
    """Each replica's node, on the page with the metrics of all. Empty if one of them has not answered, as on a busy machine."""
    answer = requests.get(f"{server.url}/metrics", timeout=30)
    if answer.status_code == 503:
        return {}
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name: family.samples for family in text_string_to_metric_families(answer.text)}
    if found["lmi_replicas_missing"][0].value != 0:
        return {}
    return {sample.labels["replica"]: sample.labels["node"] for sample in found["vllm:num_requests_running"]}


def test_one_replica_becomes_three_and_one_again(cluster: RayCluster, port: int, tmp_path: Path) -> None:
    arguments = ("--min-replicas", "1", "--max-replicas", "3", "--upscale-delay-s", "1", "--downscale-delay-s", "2")
    with deployed(cluster, tmp_path / "m", OF_SMALL_BATCHES, port, *arguments, "--env", "LOG_FORMAT=json") as server:
        wait_until(lambda: len(replicas_of(server)) == 1, 240)
        few = Clients(server, 3, seconds=8)  # one replica can answer them; there is always one on most replicas
        many = Clients(server, 2 * BATCH, seconds=2)
        wait_until(lambda: len(replicas_of(server)) == 3, 240)
        wait_until(lambda: len({*replicas_of(server).values()}) > 1, 240)
        assert many.stop() >= 2 * BATCH
        wait_until(lambda: len(replicas_of(server)) == 1, 240)
        cluster.wait_for_processes(ENGINE, 1, 240)
        assert few.stop() >= 3


def test_a_node_is_killed(cluster: RayCluster, server: Server) -> None:
    with MixedLoad(server) as load:
        load.wait_for_streams()
        fault = time.monotonic()
        node_with_a_replica(cluster).kill()
        seconds = load.seconds_until_calm(fault)
        load.wait_for_streams()
    report("a node killed", load, fault, seconds)
    assert seconds < SLOW_MACHINE
    assert 0 < len(load.failed) <= AT_ONCE
    assert "ClientDisconnected" not in server.log  # no stream of another replica was cut


def test_a_node_falls_silent(cluster: RayCluster, server: Server) -> None:
    """As a machine without power on a network: no connection is refused or reset, and nothing is answered."""
    with MixedLoad(server) as load:
        load.wait_for_streams()
        fault = time.monotonic()
        node = node_with_a_replica(cluster)
        before = replicas_up(cluster)
        assert before
        node.freeze()
        try:
            seconds = load.seconds_until_calm(fault)
            wait_until(lambda: is_any_left_out(cluster, before), SLOW_MACHINE)
            noticed = time.monotonic()
            load.wait_for_streams(3)
        finally:
            node.kill()  # ends what still waits for it
    report(f"a node silent, noticed after {noticed - fault:.2f} s", load, fault, seconds)
    assert seconds < SLOW_MACHINE
    assert 0 < len(load.failed) <= AT_ONCE
    assert all(result.started < noticed for result in load.failed)
    assert "ClientDisconnected" not in server.log


@pytest.mark.parametrize("part", ["replica", "server"])
def test_a_process_is_killed(cluster: RayCluster, server: Server, part: str) -> None:
    wait_until(lambda: len(replicas_up(cluster) or ()) == len(engines(cluster)) >= 2, 180)  # none is just starting
    with MixedLoad(server) as load:
        load.wait_for_streams()
        engine = engine_with_streams(cluster, server)
        fault = time.monotonic()
        # An engine's parents are the supervisor, the server and the replica.
        engine.parents()[2 if part == "replica" else 1].kill()
        seconds = load.seconds_until_calm(fault)
        load.wait_for_streams()
    report(f"a {part} killed", load, fault, seconds)
    assert seconds < SLOW_MACHINE
    assert 0 < len(load.failed) <= AT_ONCE


def test_an_update_loses_nothing(cluster: RayCluster, server: Server) -> None:
    wait_for_replicas(cluster, 2)
    before, disconnected = engines(cluster), server.log.count("ClientDisconnected")
    command = command_of(cluster, str(server.directory), server.port, "--replicas", "2", "--detach")
    with MixedLoad(server) as load:
        load.wait_for_streams()
        began = time.monotonic()
        done = subprocess.run(
            command, env=ENVIRON | cluster.environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: len(engines(cluster)) == 2 and not engines(cluster) & before, 120)
        load.wait_for_streams()
    report(f"an update of {time.monotonic() - began:.0f} s", load, began)
    assert load.failed == []
    assert server.log.count("ClientDisconnected") == disconnected


def test_a_mistake_leaves_what_is_served(cluster: RayCluster, server: Server) -> None:
    """Serve does not listen on another port when it is running, and the command that asks for it ends nothing."""
    done = subprocess.run(
        command_of(cluster, str(server.directory), free_port()),
        env=ENVIRON | cluster.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert says(done.stderr, f"listens 0.0.0.0:{server.port} already")
    assert requests.get(f"{server.url}/ping", timeout=60).status_code == 200


def test_ray_serves_the_application_of_the_manifest(cluster: RayCluster, server: Server, tmp_path: Path) -> None:
    """With Ray's own command, where KubeRay asks Ray's dashboard for the same. Deletes what was served before."""
    end(server, signal.SIGTERM)
    manifest = yaml.safe_load((ROOT / "examples" / "rayservice.yaml").read_text())
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    arguments = config["applications"][0]["args"]
    arguments |= {"model_dir": str(tmp_path / "m"), "replicas": 1, "num_cpus": 1, "num_gpus": 0}
    config["http_options"]["port"] = server.port
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [str(Path(sys.executable).parent / "serve"), "run", "--address", cluster.address]
    command.append(str(tmp_path / "config.yaml"))
    ours = Server(
        tmp_path / "m", "option.rolling_batch=echo\n", command=command, port=server.port, environ=cluster.environ
    )
    try:
        assert ours.wait_ready(400).invoke({"inputs": "Hi"}).json() == {"generated_text": "Hi"}
        end(ours, signal.SIGINT)
    finally:
        ours.process.kill()
        ours.process.wait(90)
