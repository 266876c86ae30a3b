"""Starts and stops the measured processes, and reads their CPU time and memory."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmi_handlers.workers.process import free_ports

_PHASE = re.compile(rb'"phase": "(.*?)"')  # as our `/ping` has it
HERE = Path(__file__).parent
READY_TIMEOUT = 180.0
ANSWER_TIMEOUT = 300.0
_STOP_TIMEOUT = 35.0
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """A process, as shown in `/proc`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._directory = Path(f"/proc/{pid}")

    @property
    def command(self) -> str:
        """The command line, joined by spaces."""
        return (self._directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    @property
    def resident_bytes(self) -> int:
        """Resident memory, including memory shared with other processes."""
        return int((self._directory / "statm").read_text().split()[1]) * _PAGE_SIZE

    @property
    def peak_resident_bytes(self) -> int:
        """The highest `resident_bytes` since the process started or `reset_peak` was called."""
        status = (self._directory / "status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def reset_peak(self) -> None:
        """Set `peak_resident_bytes` to the present value."""
        (self._directory / "clear_refs").write_text("5")  # proc_pid_clear_refs(5)

    @property
    def shared_bytes(self) -> int:
        """Resident memory, with an equal share of what several processes use (PSS)."""
        rollup = (self._directory / "smaps_rollup").read_text()
        return int(rollup.partition("\nPss:")[2].split()[0]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all threads, in user and kernel mode."""
        fields = (self._directory / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def children(self) -> list[Process]:
        """Return the direct child processes."""
        tasks = (self._directory / "task").iterdir()
        return [Process(int(pid)) for task in tasks for pid in (task / "children").read_text().split()]

    def tree(self) -> Iterator[Process]:
        """Yield this process and all that descend from it."""
        yield self
        for child in self.children():
            yield from child.tree()

    def maps(self, name: str) -> bool:
        """Whether a file with `name` in its path is mapped into memory. Loaded libraries are."""
        return name in (self._directory / "maps").read_text()


class Server:
    """An HTTP server on 127.0.0.1 that has been started, and is ready once `ready_path` answers 200."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, ready_path: str = "/ping") -> None:
        self.port = port
        self.seconds_to_ready = 0.0
        self._started = time.perf_counter()
        self._process = process
        self._root = Process(process.pid)
        self._log = log
        self._ready_path = ready_path

    def wait(self) -> None:
        """Return when the server is ready, and set `seconds_to_ready`. Raises `RuntimeError` if that never happens."""
        while self.loading() is not None:
            time.sleep(0.01)

    def loading(self) -> str | None:
        """Return the phase of loading, or None if the server is ready. Raises `RuntimeError` if it has ended."""
        status, body = self._get(self._ready_path)
        if status == 200:
            self.seconds_to_ready = time.perf_counter() - self._started
            return None
        if self._process.poll() is not None or time.perf_counter() - self._started > READY_TIMEOUT:
            raise RuntimeError(f"the server on port {self.port} is not ready:\n{self._log.read_text()[-2000:]}")
        phase = _PHASE.search(body)
        return phase[1].decode() if phase else ""

    def pause(self) -> None:
        """Stop all processes of the server, so that none polls, until `go_on` is called."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the server's processes run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # the server ends
            for process in list(self._root.tree()):
                os.kill(process.pid, number)

    def metrics(self) -> dict[str, float]:
        """Return the values of `/metrics` by series: name and labels, as they are written."""
        lines = self.page("/metrics").decode().splitlines()
        series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    def counter(self, name: str) -> float:
        """Return the value of a series of `/metrics`, whatever its labels."""
        return sum(value for series, value in self.metrics().items() if series.partition("{")[0] == name)

    def page(self, path: str) -> bytes:
        """Return the body of a page."""
        return self._get(path)[1]

    @property
    def backend(self) -> str:
        """The backend that our server has loaded."""
        return self._logged("engine ready", "backend")

    @property
    def dtype(self) -> str:
        """The type that our engine computes in."""
        return self._logged("model loaded", "dtype")

    def _logged(self, message: str, field: str) -> str:
        lines = (json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{"))
        return next(str(line[field]) for line in lines if line["message"] == message)

    @property
    def web_worker(self) -> Process:
        """The process that serves HTTP: gunicorn's worker, or uvicorn itself."""
        workers = [child for child in self._root.children() if "lmi_handlers.engine" not in child.command]
        return workers[0] if workers else self._root

    @property
    def engine(self) -> Process | None:
        """The engine process, or None if the server has none, or none yet."""
        for child in self._root.children():
            if "lmi_handlers.engine.supervisor" in child.command:
                return next(iter(child.children()), None)
        return None

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


@contextmanager
def lmi_server(
    directory: Path, properties: dict[str, object], environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """Run `lmi serve` with one web worker and these serving.properties."""
    with loading_lmi_server(directory, properties, environ) as server:
        server.wait()
        yield server


@contextmanager
def loading_lmi_server(
    directory: Path, properties: dict[str, object], environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """Start `lmi serve` like `lmi_server`, but do not wait until it is ready."""
    directory.mkdir(exist_ok=True)
    lines = [f"{name}={value}\n" for name, value in properties.items()]
    (directory / "serving.properties").write_text("".join(lines))
    [port] = free_ports(1)
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--model-dir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with running(command, directory / "server.log", environ) as process:
        yield Server(process, port, directory / "server.log")


@contextmanager
def fastapi_server(directory: Path, records: bytes, *, pace: float = math.inf) -> Iterator[Server]:
    """Run the peer: one uvicorn process with uvloop, httptools and no access log.

    It answers every request with `records`, `pace` per second.
    """
    directory.mkdir(exist_ok=True)
    (directory / "records").write_bytes(records)
    [port] = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "peer_fastapi:app", "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--loop",
        "uvloop",
        "--http",
        "httptools",
        "--no-access-log",
        "--log-level",
        "warning",
    ]
    environ = {"BENCH_RECORDS": str(directory / "records"), "BENCH_PACE": str(pace)}
    with running(command, directory / "server.log", environ) as process:
        server = Server(process, port, directory / "server.log")
        server.wait()
        yield server


@contextmanager
def vllm_server(directory: Path, model: Path, options: dict[str, object]) -> Iterator[Server]:
    """Run `vllm serve` on the model with the engine arguments `options`, without access and statistics logs."""
    directory.mkdir(exist_ok=True)
    [port] = free_ports(1)
    command = [
        sys.executable,
        str(HERE / "peer_vllm.py"),
        "serve",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    environ = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    with running(command, directory / "server.log", environ) as process:
        server = Server(process, port, directory / "server.log")
        server.wait()
        yield server


@contextmanager
def llama_cpp_server(directory: Path, gguf_file: Path, slots: int, slot_tokens: int) -> Iterator[Server]:
    """Run llama.cpp's server on a GGUF file, for `slots` requests at a time of at most `slot_tokens` each."""
    directory.mkdir(exist_ok=True)
    [port] = free_ports(1)
    command = [sys.executable, str(HERE / "peer_llama_cpp.py"), str(gguf_file), str(port), str(slots), str(slot_tokens)]
    with running(command, directory / "server.log", {}) as process:
        server = Server(process, port, directory / "server.log", ready_path="/health")
        server.wait()
        yield server


class Responder:
    """A script that answers each line of JSON on standard input with one on standard output.

    `hello` is its first line.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.hello = self._receive()

    def ask(self, question: object) -> Any:
        """Send a question and wait for the answer. The script only works during this call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT)[0]:
            raise TimeoutError(f"the peer has not answered for {ANSWER_TIMEOUT:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer has ended:\n{self._log.read_text()[-2000:]}")
        return json.loads(line)


@contextmanager
def responder(directory: Path, script: str, *arguments: str) -> Iterator[Responder]:
    """Run a script of this folder with these arguments."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "stderr.log"
    with running([sys.executable, str(HERE / script), *arguments], log, {}, pipes=True) as process:
        yield Responder(process, log)


@contextmanager
def running(
    command: list[str], log: Path, environ: Mapping[str, str], *, pipes: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends, even if it ends with an exception."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
    if "LMI_CACHE_DIR" in os.environ:
        clean["LMI_CACHE_DIR"] = os.environ["LMI_CACHE_DIR"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else stderr,
            stderr=stderr,
            env=clean | dict(environ),
        )
        try:
            yield process
        except Exception:
            print(f"the last of {log}:\n{log.read_text()[-2000:]}", file=sys.stderr)  # the folder is deleted soon
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
