"""SIGHUP replaces the web workers. The server goes on, and `/ping` says so on every connection."""

from __future__ import annotations

import signal

import requests
from serving import StartServer
from waiting import wait_until


def test_ping_is_200_while_workers_are_replaced(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.web_workers=2\noption.echo_tokens_per_second=8\n")

    def workers() -> set[int]:
        return {worker.pid for worker in server.web_workers()}

    before = workers()
    assert len(before) == 2
    body = {"inputs": "abcdefgh" * 4, "stream": True, "parameters": {"max_new_tokens": 32}}
    statuses = set()
    with (
        requests.Session() as kept,
        requests.post(f"{server.url}/invocations", json=body, stream=True, timeout=60) as stream,
    ):
        parts = stream.iter_content(None)
        first = next(parts)
        statuses.add(kept.get(f"{server.url}/ping", timeout=60).status_code)
        server.process.send_signal(signal.SIGHUP)

        def replaced() -> bool:
            statuses.add(kept.get(f"{server.url}/ping", timeout=60).status_code)
            statuses.add(requests.get(f"{server.url}/ping", timeout=60).status_code)
            return len(workers() - before) == 2

        wait_until(replaced, 120)
        text = first + b"".join(parts)
    assert text.count(b'"token"') == 32, "the stream went on"
    wait_until(lambda: not workers() & before, 120)
    assert statuses == {200}
