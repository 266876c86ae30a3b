"""Real servers for tests: each `lmi serve` runs in its own process, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil
import requests

S = TypeVar("S", bound="Server")

ENVIRON = dict(os.environ)
"""The environment before any test ran. Engines that tests load in their own process change it (vLLM sets LD_PRELOAD)."""


_ENGINE = "lmi_handlers.engine.process"
_LOWEST = 19
"""The niceness of a shadow's engine."""

API_KEY = "s3cret-key"
"""The key that `guarded_server` requires."""


class Server:
    """A running `lmi serve`, or another `command` that serves on `port`, started in the model's directory.

    `log` is its output so far (standard output and standard error), in whole lines. With `log_reader`, it goes through
    a pipe to a process of that name, which a test can suspend.
    """

    def __init__(
        self,
        directory: Path,
        properties: str,
        *arguments: str,
        environ: dict[str, str] | None = None,
        command: list[str] | None = None,
        port: int | None = None,
        log_reader: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "serving.properties").write_text(properties)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = directory.name
        self.directory = directory
        self._log_path = directory / "stderr.log"
        clean = {key: value for key, value in ENVIRON.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
        if command is None:
            command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--model-dir", str(directory)]
            command += ["--host", "127.0.0.1", "--port", str(self.port), *arguments]
        self.log_reader: subprocess.Popen[bytes] | None = None
        with contextlib.ExitStack() as files:
            output: IO[bytes] = files.enter_context(self._log_path.open("wb"))
            if log_reader:
                self.log_reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output)
                assert self.log_reader.stdin is not None
                output = files.enter_context(self.log_reader.stdin)
            self.process = subprocess.Popen(
                command, cwd=directory, stderr=output, stdout=output, env=clean | (environ or {})
            )

    @property
    def log(self) -> str:
        text = self._log_path.read_text()
        return text[: text.rfind("\n") + 1]  # the last line may be in the middle of being written

    def wait_ready(self: S, timeout: float = 280.0) -> S:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log}")
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                if self.ping().status_code == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError(f"server not ready within {timeout} s:\n{self.log}")

    @contextlib.contextmanager
    def no_restart(self) -> Iterator[None]:
        """No engine is started before the end of the block, however long it takes to look at the server without one."""
        supervisor = self.supervisor()
        supervisor.suspend()
        try:
            yield
        finally:
            supervisor.resume()

    def wait_restarted(self, ended: psutil.Process) -> Server:
        """Wait until another engine than this one serves. `/ping` alone may not know yet that this one has ended."""
        deadline = time.monotonic() + 280
        while self._engine_or_none() in (None, ended):
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log}")
            assert time.monotonic() < deadline, f"no other engine was started:\n{self.log}"
            time.sleep(0.05)
        return self.wait_ready()

    def wait_listening(self, timeout: float = 280.0) -> Server:
        """Wait until the server accepts connections, whatever it answers."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log}")
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                self.ping()
                return self
            time.sleep(0.1)
        raise AssertionError(f"server not listening within {timeout} s:\n{self.log}")

    def ping(self) -> requests.Response:
        return requests.get(f"{self.url}/ping", headers={"Connection": "close"}, timeout=60)

    def invoke(self, body: object = None, *, path: str = "/invocations", **options: object) -> requests.Response:
        options.setdefault("timeout", 60)
        return requests.post(self.url + path, json=body, **options)  # type: ignore[arg-type]  # requests' own keywords

    def wait_for_sequences(self, running: int, waiting: int = 0, timeout: float = 60.0) -> None:
        """Wait until the engine has this many sequences in its batch and in its queue."""
        deadline = time.monotonic() + timeout
        while (seen := self.sequences()) != (running, waiting):
            assert time.monotonic() < deadline, (
                f"(running, waiting) sequences: expected {(running, waiting)}, got {seen}"
            )
            time.sleep(0.02)

    def sequences(self) -> tuple[int, ...]:
        """How many sequences the engine has in its batch and in its queue."""
        page = requests.get(f"{self.url}/metrics", headers={"Connection": "close"}, timeout=60).text
        return tuple(
            int(float(value)) for value in re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (.*)$", page, re.M)
        )

    def log_entry(self, request_id: str) -> dict[str, Any]:
        """The log entry of a request. Waits for it, because it is written after the answer has been sent."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for line in self.log.splitlines():
                if request_id in line:
                    entry: dict[str, Any] = json.loads(line)
                    return entry
            time.sleep(0.05)
        raise AssertionError(f"no log entry for request {request_id}")

    def engine(self) -> psutil.Process:
        """The current engine process. It is not the shadow's."""
        engines = self._by_niceness()
        if not engines or (len(engines) == 1 and engines[0][0] == _LOWEST > psutil.Process().nice()):
            raise AssertionError("no engine runs")
        return engines[0][1]

    def shadow(self) -> psutil.Process | None:
        """The shadow's current engine process, the only one with the lowest priority."""
        return next((process for nice, process in self._by_niceness() if nice == _LOWEST), None)

    def _by_niceness(self) -> list[tuple[int, psutil.Process]]:
        found = []
        for process in self._supervised(_ENGINE):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                found.append((process.nice(), process))
        return sorted(found, key=operator.itemgetter(0))

    def _engine_or_none(self) -> psutil.Process | None:
        try:
            return self.engine()
        except (AssertionError, psutil.NoSuchProcess):  # between two engines, or the server has ended
            return None

    def supervised(self, module: str) -> psutil.Process:
        """The current process that runs this program."""
        if (found := next(self._supervised(module), None)) is None:
            raise AssertionError(f"no process runs {module}")
        return found

    def _supervised(self, module: str) -> Iterator[psutil.Process]:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                if module in child.cmdline():
                    yield child

    def code_processes(self) -> list[psutil.Process]:
        """The processes that run the model's own code."""
        found = []
        for child in self.supervised("lmi_handlers.custom_code.pool").children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                if "lmi_handlers.custom_code.child" in child.cmdline():
                    found.append(child)
        return found

    def web_worker(self) -> psutil.Process:
        """One of the web workers."""
        return self.web_workers()[0]

    def web_workers(self) -> list[psutil.Process]:
        """All web workers."""
        supervisor = self.supervisor()
        return [child for child in psutil.Process(self.process.pid).children() if child != supervisor]

    def supervisor(self) -> psutil.Process:
        """The process that starts and restarts the engine."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # a web worker that has just ended
                if "lmi_handlers.engine.supervisor" in child.cmdline():
                    return child
        raise AssertionError("no supervisor runs")

    def stop(self) -> None:
        """Stop immediately. Tests of the graceful shutdown send SIGTERM themselves."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait(120)
        if self.log_reader is not None:
            self.log_reader.wait(120)


def lmi_check(
    directory: Path, *arguments: str, environ: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `lmi check` on a model directory, in this process. What it starts are processes, such as the model's own code."""
    from lmi_command import ended

    given = ("check", "--model-dir", str(directory), *arguments)
    done = ended(*given, folder=folder or directory.parent, environ=ENVIRON | (environ or {}))
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


_PROCESSES = 16
"""At most so many test processes run at the same time. Each has ports of its own."""


@functools.cache
def _ports() -> Iterator[int]:
    """The ports of this process, in random order: others may use the same machine."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(range(10_000 + number % _PROCESSES, 32_768, _PROCESSES))
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


def free_port() -> int:
    """A free port below the ephemeral range, so that the system does not give it to a client before the server binds it.

    For the same reason, neither this process nor another one of the same test run gets it twice.
    """
    while True:
        port = next(_ports())
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


StartServer = Callable[..., Server]
