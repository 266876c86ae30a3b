"""Web workers stay small, and logs are JSON lines that contain no prompt."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from serving import Server, StartServer
from waiting import wait_until

HEAVY = ("torch", "transformers", "accelerate", "vllm", "boto3", "numpy")
MOST_MIB = 100
"""A web worker takes 74 MiB after a chat with the small model, 28 of them for the tokenizer."""


def libraries(process: psutil.Process) -> set[str]:
    """The large packages whose native code is mapped into the process."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return {name for name in HEAVY if f"/site-packages/{name}/" in maps}


def resident_mib(process: psutil.Process) -> float:
    size: int = process.memory_info().rss
    return size / 2**20


# Size


def test_web_worker_imports_no_engine_library(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=scheduler\n")
    modules = "lmi_handlers.app, lmi_handlers.gunicorn_conf, lmi_handlers.commands.cli"
    program = f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"LMI_MODEL_DIR": str(tmp_path), "LMI_HOST": "127.0.0.1", "LMI_PORT": "1"} | {"PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.stdout, result.returncode) == ("[]\n", 0), result.stderr


def ask_both_ways(server: Server) -> None:
    for stream in (False, True):
        answer = server.invoke({"inputs": "Hello, world", "stream": stream, "parameters": {"max_new_tokens": 4}})
        assert answer.status_code == 200


def assert_are_small(server: Server) -> None:
    for process in (*server.web_workers(), server.supervisor(), psutil.Process(server.process.pid)):
        assert libraries(process) == set()
        assert resident_mib(process) < MOST_MIB


@pytest.mark.long
def test_web_worker_is_small_after_requests_to_the_echo_backend(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\n", "--workers", "1")
    ask_both_ways(server)
    assert_are_small(server)


def test_web_worker_is_small_after_requests(model_server_once: Server) -> None:
    """A new one, whatever other tests have asked the server."""
    server = model_server_once
    before = server.web_workers()
    for worker in before:
        worker.kill()
    wait_until(lambda: len(set(server.web_workers()) - set(before)) == len(before))
    server.wait_ready()
    for _ in range(4):  # by every worker
        ask_both_ways(server)
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = server.invoke(chat, path="/v1/chat/completions")
        assert answer.status_code == 200
    assert_are_small(server)
    assert "torch" in libraries(server.engine()), "the check above detects no packages"


def test_rejected_requests_take_no_memory(echo_server: Server) -> None:
    record = b'{"inputs":"' + b"a b " * 125_000 + b'"}'

    def refuse(times: int) -> None:
        for _ in range(times):
            assert echo_server.invoke(data=record, headers={"Content-Type": "application/json"}).status_code == 424
            batch = echo_server.invoke(data=record + b"\n" + record, headers={"Content-Type": "application/jsonlines"})
            assert batch.text.count('"code":424') == 2

    workers = echo_server.web_workers()
    refuse(10)
    before = sum(map(resident_mib, workers))
    refuse(80)
    assert sum(map(resident_mib, workers)) - before < 60, "all rejected requests together have over 150 MiB"


def test_replacement_workers_do_not_import_again(private_server: Server) -> None:
    server = private_server
    killed = server.web_workers()
    for worker in killed:
        worker.kill()
    assert requests.get(f"{server.url}/ping", timeout=60).status_code in (200, 503)
    wait_until(lambda: len(set(server.web_workers()) - set(killed)) == 2)
    server.wait_ready()
    arbiter = psutil.Process(server.process.pid)
    for worker in server.web_workers():
        assert worker not in killed
        assert processor_seconds(worker) < processor_seconds(arbiter), "imports are most of the work at start"


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    seconds: float = times.user + times.system
    return seconds


# Logs

SECRET = "xyzzyplugh"
"""A word in every prompt below, short enough to fit into an error message."""


@pytest.fixture(scope="module")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose complete log is checked."""
    properties = (
        "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=256\nmax_request_size=4096\n"
        "option.no_such_option=1\n"
    )
    server = Server(tmp_path_factory.mktemp("private") / "m", properties, "--workers", "2")
    yield server.wait_ready()
    server.stop()


def bodies() -> dict[str, Any]:
    """Requests with every kind of outcome, each with the secret in its prompt."""
    return {
        "fine": {"inputs": f"{SECRET} is fine"},
        "streamed": {"inputs": f"{SECRET} is fine", "stream": True, "parameters": {"details": True}},
        "fails in mid-stream": {"inputs": f"{SECRET} RAISE@3", "stream": True},
        "fails at once": {"inputs": f"{SECRET} RAISE@1"},
        "too long": {"inputs": SECRET * 50},
        "far too long": {"inputs": SECRET * 300},
        "larger than a request may be": {"inputs": SECRET * 1000},
        "of the wrong type": {"inputs": {"text": SECRET}},
        "in the wrong place": {"prompt": SECRET},
        "a list with a wrong item": {"inputs": [SECRET, 7]},
        "a bad parameter": {"inputs": SECRET, "parameters": {"temperature": -1}},
        "a parameter of the wrong type": {"inputs": SECRET, "parameters": {"max_new_tokens": SECRET}},
        "a stop of the wrong type": {"inputs": SECRET, "parameters": {"stop": {SECRET: 1}}},
        "an unknown parameter": {"inputs": SECRET, "parameters": {"colour": SECRET}},
    }


RAW = {
    "cut off": b'{"inputs": "' + SECRET.encode(),
    "no JSON at all": SECRET.encode(),
    "not UTF-8": b'{"inputs": "' + SECRET.encode() + b'\xff"}',
    "several lines": f'{{"inputs": "{SECRET}"}}\n{SECRET}\n{{"inputs": 7, "x": "{SECRET}"}}\n'.encode(),
}


def test_log_has_only_json_lines_and_no_prompt(private_server: Server) -> None:
    statuses = [private_server.invoke(body).status_code for body in bodies().values()]
    for content_type in ("application/json", "application/jsonlines"):
        for data in RAW.values():
            answer = private_server.invoke(data=data, headers={"Content-Type": content_type})
            statuses.append(answer.status_code)
    assert {200, 413, 424} <= set(statuses)
    crash = private_server.invoke({"inputs": f"{SECRET} CRASH@2"})
    assert crash.status_code == 500
    private_server.wait_ready()
    wait_until(lambda: private_server.log.count('"lmi_handlers.web.access_log"') > len(statuses))
    log = private_server.log
    # Problems that an operator must solve are logged as readable messages.
    records = [json.loads(line) for line in log.splitlines() if not line.startswith("lmi: ")]
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    logged = [record for record in records if record["logger"] == "lmi_handlers.web.access_log"]
    assert len(logged) == len(statuses) + 1
    assert any("crashed, as the prompt asked" in record.get("exception", "") for record in records)
    assert SECRET not in log
