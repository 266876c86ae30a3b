"""A handler that keeps crashing hurts only the calls that it crashes in."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from custom_handlers import CRASHES
from serving import Server

CLIENTS = 100
CALLS = 2

_CAUSE = "the process that runs handle ended with SIGABRT while it worked on this request"


def outcome(server: Server, value: int) -> bool:
    """Whether a call succeeds. Anything but the right answer or a well-formed end is an error."""
    streams = value % 2 == 1
    headers = {"X-Stream": "1"} if streams else {}
    answer = requests.post(f"{server.url}/invocations", str(value), headers=headers, timeout=120)
    if not streams:
        assert answer.json() == 2 * value if answer.status_code == 200 else answer.json()["error"] == _CAUSE
        return answer.status_code == 200
    first, last = (json.loads(line) for line in answer.content.splitlines())
    assert (answer.status_code, first) == (200, {"value": value})
    assert last in ({"twice": 2 * value}, {"error": _CAUSE, "code": 424})
    return "twice" in last


def test_every_client_of_a_handler_that_crashes_every_twentieth_call_gets_a_well_formed_end(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CRASHES)
    server = Server(tmp_path, "minWorkers=2\nmaxWorkers=2\n").wait_ready()
    with ThreadPoolExecutor(CLIENTS) as clients:
        succeeded = list(clients.map(lambda value: outcome(server, value), range(CLIENTS * CALLS)))
    assert CLIENTS * CALLS // 20 - 2 <= succeeded.count(False) <= CLIENTS * CALLS // 20  # 20 calls of one process
    server.stop()
