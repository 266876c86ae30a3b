"""A Ray cluster on this machine: each node is a `ray start` of its own, with an address of its own, from 127.0.0.2 on.

Ray takes 127.0.0.1 for whatever address the machine has in its network.

    with RayCluster(environ={"RAY_SERVE_ENABLE_HA_PROXY": "1"}) as cluster:
        node = cluster.add_node(num_cpus=2)
        run("lmi", "ray", "serve", "--address", cluster.address, ..., env=os.environ | cluster.environ)
        node.kill()

Nothing here connects to Ray, and `ray stop` is never called: only processes that were started here are ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from ray_serving import PATIENCE
from serving import ENVIRON, free_port

_START_SECONDS = 180.0  # a slow machine with other tests running
_OBJECT_STORE_BYTES = 80_000_000  # Ray's minimum is 75 MB
_ATTEMPTS = 3  # Ray itself gives up after 30 s
_STARTED = "Ray runtime started"

_AGENT_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "runtime-env-agent-port",
)
"""Ray waits 15 s for agents that choose their ports themselves, which a busy machine exceeds, and then aborts."""


class RayNode:
    """One node: a `ray start --block` and everything below it."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.address = address
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What `ray start` has written."""
        return self._log.read_text(errors="replace")

    def processes(self, text: str = "") -> list[psutil.Process]:
        """The node's processes whose command line contains this text."""
        found = []
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                if text in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """End the node as a power cut would: nothing on it can do anything any more."""
        self._stopped()
        for _ in range(3):  # also what was just being started
            self.end()

    def freeze(self) -> None:
        """Stop all processes, as on a machine that hangs: connections are accepted, and nothing is answered."""
        self._stopped()

    def thaw(self) -> None:
        """Let a frozen node go on."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _stopped(self) -> list[psutil.Process]:
        processes = self._all()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        return processes

    def _all(self) -> list[psutil.Process]:
        """All processes of the node: those of its session, and their children."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        return list(found.values())

    def end(self) -> None:
        """Kill what is left of the node."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(30)

    def wait_started(self) -> None:
        """Wait until Ray runs on this node. Fails with its output if it gives up, or if that takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while _STARTED not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)


class RayCluster:
    """A cluster, started with its head node. `environ` is added to the environment of all nodes.

    Whatever connects to the cluster needs `cluster.environ`: it has the cluster's token.
    """

    def __init__(
        self,
        *,
        num_cpus: float = 1,
        environ: Mapping[str, str] | None = None,
        dashboard: bool = False,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        clean = {key: value for key, value in ENVIRON.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
        self.environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.variables = dict(environ or {})
        self._environ = clean | self.environ | self.variables | PATIENCE
        self._logs = tempfile.TemporaryDirectory(prefix="ray-cluster-")
        self.nodes: list[RayNode] = []
        port = free_port()
        self.address = f"{_address(0)}:{port}"
        self.dashboard_port = free_port()
        arguments = ["--head", "--port", str(port), "--include-dashboard", str(dashboard).lower()]
        arguments += ["--dashboard-port", str(self.dashboard_port), "--ray-client-server-port", str(free_port())]
        self.head = self._start(arguments, num_cpus, resources or {}, {})

    def add_node(
        self,
        *,
        num_cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> RayNode:
        """Start one more node, and wait for it: nodes of one machine that start at once take each other's sockets."""
        arguments = ["--address", self.address, "--include-log-monitor", "false"]  # the head's reads all nodes' files
        return self._start(arguments, num_cpus, resources or {}, environ or {})

    def _start(
        self, arguments: list[str], num_cpus: float, resources: Mapping[str, float], environ: Mapping[str, str]
    ) -> RayNode:
        given = ["--num-cpus", f"{num_cpus:g}", "--resources", json.dumps(resources), *arguments]
        for attempt in range(_ATTEMPTS):
            node = self._started_node(given, environ)
            try:
                node.wait_started()
            except AssertionError:
                node.end()
                if attempt == _ATTEMPTS - 1:
                    self.stop()
                    raise
            else:
                break
        self.nodes.append(node)
        return node

    def _started_node(self, arguments: list[str], environ: Mapping[str, str]) -> RayNode:
        address = _address(len(self.nodes))
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address", address]
        command += ["--object-store-memory", str(_OBJECT_STORE_BYTES), "--disable-usage-stats"]
        command += ["--min-worker-port", "0", "--max-worker-port", "0"]  # any free port, not Ray's 10002 to 19999
        for name in _AGENT_PORTS:
            command += [f"--{name}", str(free_port())]
        log = Path(self._logs.name) / f"{address}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments],
                stdout=file,
                stderr=file,
                env=self._environ | dict(environ),
                start_new_session=True,
            )
        return RayNode(address, process, log)

    def wait_for_processes(self, text: str, number: int, timeout: float = 120.0) -> list[psutil.Process]:
        """Wait until this many processes of the whole cluster have this text in their command lines."""
        deadline = time.monotonic() + timeout
        while len(found := [process for node in self.nodes for process in node.processes(text)]) != number:
            assert time.monotonic() < deadline, f"expected {number} processes {text!r}, found {found}"
            time.sleep(0.5)  # looking at all processes takes a while
        return found

    def stop(self) -> None:
        """Kill all nodes. To end in order takes Ray long, and leaves the same files behind."""
        for node in self.nodes:
            node.kill()
        self.nodes.clear()
        self._logs.cleanup()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _address(number: int) -> str:
    return f"127.0.0.{number + 2}"
