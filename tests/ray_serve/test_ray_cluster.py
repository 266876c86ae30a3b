"""A real cluster of two nodes: `lmi ray serve --address`, a node that dies, and the application in Ray's own commands."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from paths import ROOT
from raw_http import connect, read_to_end, request
from serving import ENVIRON, Server, free_port

pytestmark = pytest.mark.long

PROPERTIES = "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=100\n"
BIN = Path(sys.executable).parent
OF_RAY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-this-test-" + "x" * 32,
}


class Cluster:
    """Two nodes with one core each. `nodes` are their programs, of which the first has the head."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.start("--head", "--include-dashboard=false", f"--port={port}")
        self.start(f"--address={self.address}")

    def start(self, *arguments: str) -> None:
        command = [str(BIN / "ray"), "start", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1"]
        command += ["--object-store-memory=80000000", *arguments]
        self.nodes.append(subprocess.Popen(command, env=ENVIRON | OF_RAY, stdout=subprocess.DEVNULL))

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """End a node as a power cut would."""
        processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        node.wait(20)
        psutil.wait_procs(processes, 20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    for node in found.nodes:
        if node.poll() is None:
            found.kill(node)


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "rayservice.yaml").read_text())
    return loaded


def test_a_node_dies_and_the_others_serve_on(cluster: Cluster, tmp_path: Path) -> None:
    directory, port = tmp_path / "m", free_port()
    command = [str(BIN / "lmi"), "ray", "serve", "--model-dir", str(directory), "--address", cluster.address]
    command += ["--replicas", "2", "--num-cpus", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--proxies", "HeadOnly", "--env", "API_KEY=key"]
    server = Server(directory, PROPERTIES, command=command, port=port, environ=OF_RAY).wait_ready()
    assert server.invoke({"inputs": "Hi"}).status_code == 401
    key = {"Authorization": "Bearer key"}
    body = {"inputs": "x" * 300, "parameters": {"max_new_tokens": 4000}, "stream": True}
    message = request(body, "/invocations", "Authorization: Bearer key", "Connection: close")
    deadline = time.monotonic() + 60
    while len(set(re.findall(r"ServeReplica:lmi:lmi pid=(\d+).* POST / 200 ", server.log))) < 2:  # both are known
        assert time.monotonic() < deadline, server.log
        assert server.invoke({"inputs": "Hi"}, headers=key).status_code == 200
        time.sleep(0.1)
    assert all(map(has_engine, cluster.nodes))
    socks = [connect(server, message) for _ in range(6)]  # three seconds each, three on each node
    assert all(sock.recv(100) for sock in socks)
    cluster.kill(cluster.nodes[1])
    for _ in range(5):
        assert server.invoke({"inputs": "Hi"}, headers=key).json() == {"generated_text": "Hi"}
    whole = [b'"generated_text"' in read_to_end(sock) for sock in socks]
    assert 0 < sum(whole) < len(whole)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0, server.log


def test_the_manifest_is_what_ray_and_the_application_accept(
    cluster: Cluster, manifest: dict[str, Any], tmp_path: Path
) -> None:
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    arguments = config["applications"][0]["args"]
    arguments |= {"model_dir": str(tmp_path / "m"), "replicas": 1, "num_cpus": 1, "num_gpus": 0}
    config["proxy_location"] = "HeadOnly"
    config["http_options"] |= {"host": "127.0.0.1", "port": (port := free_port())}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [str(BIN / "serve"), "run", "--address", cluster.address, str(tmp_path / "config.yaml")]
    server = Server(tmp_path / "m", PROPERTIES, command=command, port=port, environ=OF_RAY).wait_ready()
    assert server.invoke({"inputs": "Hi"}).json() == {"generated_text": "Hi"}
    server.process.send_signal(signal.SIGINT)
    server.process.wait(60)


def has_engine(node: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # one has just ended
        children = psutil.Process(node.pid).children(recursive=True)
        return any("lmi_handlers.engine.process" in child.cmdline() for child in children)
    return False
