"""A server whose log nobody reads goes on, and says later how many lines are missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from facts import says
from serving import ENVIRON, free_port
from waiting import wait_until

REQUESTS = 750
"""Their lines, with long identifiers, are more than the server and a pipe hold."""


class Piped:
    """`lmi serve` whose standard error is a pipe that is read when `read` is called, not before."""

    def __init__(self, directory: Path, properties: str = "option.rolling_batch=echo\n") -> None:
        (directory / "serving.properties").write_text(properties)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--model-dir", str(directory)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        environ = {key: value for key, value in ENVIRON.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
        self.process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ
        )
        self._data = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return requests.get(f"{self.url}/ping", timeout=60).status_code == 200
        except requests.ConnectionError:
            return False

    def read(self) -> None:
        if not self._reader.ident:
            self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while data := os.read(stream.fileno(), 65536):
                self._data += data

    def end(self) -> None:
        self.read()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._reader.join(60)

    @property
    def log(self) -> str:
        return bytes(self._data).decode()

    def call(self, case: str) -> requests.Response:
        return requests.post(f"{self.url}/invocations", data=case, timeout=30)

    def dropped(self) -> int:
        """How many lines were dropped, according to `/metrics`."""
        page = requests.get(f"{self.url}/metrics", timeout=60).text
        [value] = re.findall(r"^lmi_log_lines_dropped_total (.*)$", page, re.MULTILINE)
        return int(float(value))

    def answered(self) -> list[str]:
        """The identifiers of the requests in the log, in its order."""
        lines = [json.loads(line) for line in self.log.splitlines(keepends=True) if line[0] + line[-1] == "{\n"]
        return [line["request_id"] for line in lines if line["message"] == "request"]

    def ask(self, count: int) -> list[str]:
        identifiers = []
        with requests.Session() as session:
            for number in range(count):
                body = {"inputs": "a b", "parameters": {"max_new_tokens": 1}}
                headers = {"x-request-id": f"{number:0256}"}
                answer = session.post(f"{self.url}/invocations", json=body, headers=headers, timeout=30)
                assert answer.status_code == 200, answer.text
                identifiers.append(answer.headers["x-request-id"])
        return identifiers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Piped]:
    piped = Piped(tmp_path)
    try:
        yield piped
    finally:
        piped.end()


def test_requests_are_answered_while_nobody_reads_the_log(server: Piped) -> None:
    wait_until(server.ready)
    server.ask(REQUESTS)
    assert server.ready()
    assert server.dropped() > 0
    server.read()
    wait_until(lambda: "lines of the log were dropped" in server.log)
    dropped = sum(map(int, re.findall(r'"(\d+) lines of the log were dropped because nobody read them"', server.log)))
    assert 0 < dropped < REQUESTS
    assert server.dropped() == dropped
    wait_until(lambda: len(server.answered()) >= REQUESTS - dropped)


HANDLER = """
import faulthandler, os, signal, subprocess, sys
from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    case = inputs.get_as_string()
    if case == "print":
        for number in range(20_000):
            print(f"line {number:05} " + "x" * 100)
    if case == "program":
        subprocess.run([sys.executable, "-c", "print('from a program')"], check=True)
    if case == "begin a line":
        print("the beginning of a line", end="", flush=True)
    if case == "crash":
        faulthandler.enable()
        os.kill(os.getpid(), signal.SIGSEGV)
    return Output().add("done")
"""


@pytest.fixture
def printing(tmp_path: Path) -> Iterator[Piped]:
    (tmp_path / "model.py").write_text(HANDLER)
    piped = Piped(tmp_path, "maxWorkers=1\n")
    try:
        yield piped
    finally:
        piped.end()


def test_a_handler_prints_although_nobody_reads_and_what_is_read_arrives(printing: Piped) -> None:
    wait_until(printing.ready)
    for _ in range(2):
        answer = printing.call("print")
        assert (answer.status_code, answer.text) == (200, "done")
    assert printing.dropped() > 0
    printing.read()
    wait_until(lambda: "lines of the log were dropped" in printing.log)
    assert says(printing.call("crash").json()["error"], "handle ended SIGSEGV")
    wait_until(lambda: "Fatal Python error: Segmentation fault" in printing.log)
    wait_until(lambda: re.search(r'model\.py", line \d+ in handle', printing.log))
    assert printing.call("x").text == "done"  # by its successor
    assert printing.call("program").text == "done"
    wait_until(lambda: "from a program\n" in printing.log)
    assert printing.call("begin a line").text == "done"
    wait_until(lambda: "the beginning of a line" in printing.log)  # before it ends


def test_a_server_whose_log_nobody_reads_ends(printing: Piped) -> None:
    wait_until(printing.ready)
    assert printing.call("print").text == "done"
    printing.ask(100)
    assert printing.dropped() > 0
    printing.process.send_signal(signal.SIGTERM)
    assert printing.process.wait(60) == 0


@pytest.fixture(scope="module")
def read_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Piped]:
    """A server whose log is read. No test but the last asks it for an answer."""
    piped = Piped(tmp_path_factory.mktemp("read"))
    try:
        piped.read()
        wait_until(piped.ready)
        yield piped
    finally:
        piped.end()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_an_engine_prints_to_the_log(read_server: Piped) -> None:
    [engine] = [
        process
        for process in psutil.Process(read_server.process.pid).children(recursive=True)
        if "lmi_handlers.engine.process" in process.cmdline()
    ]
    output, errors = ((Path(f"/proc/{engine.pid}/fd") / number).readlink() for number in "12")
    assert output == errors


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_signals_are_left_to_the_main_thread(read_server: Piped) -> None:
    """The main thread blocks them until it can handle them. In any other thread, they would end the server at once."""
    main = read_server.process.pid
    others = [path for path in Path(f"/proc/{main}/task").iterdir() if path.name != str(main)]
    assert others
    for path in others:
        [blocked] = re.findall(r"^SigBlk:\s*(.*)$", (path / "status").read_text(), re.MULTILINE)
        assert int(blocked, 16) >> (signal.SIGTERM - 1) & 1


def test_a_log_that_is_read_has_every_line_in_order(read_server: Piped) -> None:
    asked = read_server.ask(100)
    read_server.end()
    assert read_server.answered() == asked
    assert "were dropped" not in read_server.log


def test_a_server_that_cannot_start_says_so_before_it_ends(tmp_path: Path) -> None:
    server = Piped(tmp_path, "option.rolling_batch=echo\noption.echo_fault=raise_in_load\n")
    server.read()
    try:
        assert server.process.wait(120) == 1
    finally:
        server.end()
    # The arbiter may log after it: it starts web workers while the engine loads.
    error = "lmi: error: option.echo_fault=raise_in_load: the echo backend fails to load, as requested"
    assert [line for line in server.log.splitlines() if line.startswith("lmi: error: ")] == [error]
    assert "Traceback" not in server.log


CRASHES = """
import logging, sys
from lmi_handlers.core.log import configure_logging, tell
configure_logging()
for number in range(200):
    logging.getLogger("lmi_handlers.crash").info("line %d", number)
tell("error", "the last one")
raise RuntimeError("the cause")
"""


def test_a_crash_loses_neither_its_lines_nor_its_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", CRASHES], stderr=subprocess.PIPE, text=True, check=False, env=ENVIRON)
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert [json.loads(line)["message"] for line in lines if line.startswith("{")] == [f"line {n}" for n in range(200)]
    assert "lmi: error: the last one" in lines
    assert lines.count("RuntimeError: the cause") == 1


def test_a_file_has_every_line_even_if_the_process_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        code = f"{CRASHES.rsplit('raise', 1)[0]}\nimport os\nos.kill(os.getpid(), 9)"
        assert subprocess.run([sys.executable, "-c", code], stderr=file, check=False).returncode == -signal.SIGKILL
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 201
    assert lines[-1] == "lmi: error: the last one"
