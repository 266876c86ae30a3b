"""SIGHUP replaces the web workers. The server goes on, and `/ping` says so on every connection."""

from __future__ import annotations

import contextlib
import signal

import requests
from raw_http import connect, read_to_end
from serving import StartServer
from waiting import wait_until

ECHO = "option.rolling_batch=echo\noption.web_workers=2\noption.echo_tokens_per_second=8\n"


def test_ping_is_200_while_workers_are_replaced(start_server: StartServer) -> None:
    """The old workers, too, which finish their requests, answer connections that came before the signal.

    The new ones have the configuration of the engine, whatever has become of serving.properties.
    """
    server = start_server(ECHO)

    def workers() -> set[int]:
        return {worker.pid for worker in server.web_workers()}

    before = workers()
    assert len(before) == 2
    body = {"inputs": "abcdefgh" * 25, "stream": True, "parameters": {"max_new_tokens": 200}}
    statuses = set()
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(requests.post(f"{server.url}/invocations", json=body, stream=True, timeout=60))
            for _ in range(4)
        ]
        parts = [stream.iter_content(None) for stream in streams]
        assert all(next(each) for each in parts)
        pings = [stack.enter_context(connect(server, b"GET /ping HTTP/1.1\r\nHost: localhost\r\n")) for _ in range(16)]
        statuses.add(server.ping().status_code)  # by now, all connections have been accepted
        (server.directory / "serving.properties").write_text("option.no_such_backend=1\noption.rolling_batch=none\n")
        server.process.send_signal(signal.SIGHUP)

        def replaced() -> bool:
            statuses.add(server.ping().status_code)
            return len(workers() - before) == 2

        wait_until(replaced, 120)
        for ping in pings:
            with contextlib.suppress(OSError):  # its worker has ended: workers took longer to start than the streams
                ping.sendall(b"Connection: close\r\n\r\n")
                if answer := read_to_end(ping):
                    statuses.add(int(answer.split()[1]))
        assert all(next(each) for each in parts), "the streams went on"
    wait_until(lambda: not workers() & before, 120)
    assert statuses == {200}
