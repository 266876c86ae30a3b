"""HAProxy alone, with the configuration that Ray wrote, and as many servers in it as a large cluster has replicas."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

from http_load import invocation, run_load
from report import number, print_table
from servers import Process, Server, fastapi_server, running

from lmi_handlers.workers.process import free_ports

SERVERS = (1, 64)
STREAMS, PACE, TOKENS = 200, 20, 100
IDLE_SECONDS = 4.0
_RECORD = b'{"token": {"id": 262, "text": " the", "log_prob": -0.5}}\n'
_REQUEST = invocation("The quick brown fox jumps over the lazy dog. ", max_new_tokens=TOKENS)


def measure_ingress(written: tuple[Path, str], directory: Path) -> list[dict[str, Any]]:
    """Print and return what HAProxy costs. `written` is its program, and the configuration that Ray wrote."""
    program, text = written
    with fastapi_server(directory / "streams", _RECORD * TOKENS, pace=PACE) as peer:
        measured = [_measure(program, text, servers, directory, peer) for servers in SERVERS]
    names = ("servers", "cpu_us_per_token", "idle_ms_per_second", "reload_ms", "memory", "page_bytes", "page_ms")
    rows = [[number(each[name]) for name in names] for each in measured]
    header = ["servers", "us/token", "idle, ms/s", "reload, ms", "memory, bytes", "metrics, bytes", "ms"]
    print_table(f"HAProxy alone: {STREAMS} streams at {PACE} tokens/s", header, rows)
    return measured


def _measure(program: Path, text: str, servers: int, directory: Path, peer: Server) -> dict[str, Any]:
    port, metrics_port = free_ports(2)
    file, admin = directory / f"haproxy-{servers}.cfg", directory / f"haproxy-{servers}.sock"
    file.write_text(_configuration(text, servers, admin, (port, metrics_port), peer.port))
    log = directory / "haproxy.log"
    command = [str(program), "-db", "-f", str(file)]
    with running(command, log, {}) as process:
        proxy, server = Process(process.pid), Server(process, port, log)
        server.wait()
        time.sleep(1)
        memory, cpu = proxy.shared_bytes, proxy.cpu_seconds
        time.sleep(IDLE_SECONDS)
        idle = (proxy.cpu_seconds - cpu) / IDLE_SECONDS
        cpu = proxy.cpu_seconds
        load = run_load(port, [_REQUEST] * STREAMS, STREAMS)
        cpu = proxy.cpu_seconds - cpu - idle * load.seconds
        if any(answer.records != TOKENS for answer in load.answers):
            raise RuntimeError("an answer of HAProxy is not whole")
        began = time.perf_counter()
        page = Server(process, metrics_port, log).page("/metrics")
        page_seconds = time.perf_counter() - began
        began = time.perf_counter()
        with running([*command, "-x", str(admin), "-sf", str(process.pid)], log, {}) as other:
            while _pid(admin) != other.pid:
                time.sleep(0.002)
            reload_seconds = time.perf_counter() - began
    return {
        "servers": servers,
        "cpu_us_per_token": 1e6 * cpu / (STREAMS * TOKENS),
        "idle_ms_per_second": 1e3 * idle,
        "reload_ms": 1e3 * reload_seconds,
        "memory": memory,
        "page_bytes": len(page),
        "page_ms": 1e3 * page_seconds,
    }


def _configuration(text: str, servers: int, admin: Path, ports: tuple[int, int], peer_port: int) -> str:
    """Return Ray's configuration with other ports, and `servers` servers that are all the peer."""
    text = re.sub(r"stats socket \S+", f"stats socket {admin}", text)
    text = re.sub(r"(frontend prometheus\s+bind )\S+", rf"\g<1>127.0.0.1:{ports[1]}", text)
    text = re.sub(r"(frontend http_frontend\s+bind )\S+", rf"\g<1>127.0.0.1:{ports[0]}", text)
    text = re.sub(r"(listen stats\s+bind )\S+", rf"\g<1>127.0.0.1:{free_ports(1)[0]}", text)
    text = re.sub(r"option httpchk GET \S+", "option httpchk GET /ping", text)
    text = re.sub(
        r"^ *(server-state-\w+|load-server-state).*\n|^ *server \S+ .* backup\n", "", text, flags=re.MULTILINE
    )
    one = re.search(r"^ *server \S+ \S+ (check.*)\n", text, flags=re.MULTILINE)
    if one is None:
        raise RuntimeError(f"Ray's configuration of HAProxy has no server:\n{text}")
    lines = (f"    server replica-{number_} 127.0.0.1:{peer_port} {one[1]}\n" for number_ in range(servers))
    every = re.compile(r"(^ *server \S+ \S+ check.*\n)+", flags=re.MULTILINE)
    return every.sub("".join(lines), text, count=1)


def _pid(admin: Path) -> int:
    """Return the process that answers on HAProxy's socket, or 0."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(admin))
            sock.sendall(b"show info\n")
            found = re.search(rb"^Pid: (\d+)", sock.recv(1 << 16), flags=re.MULTILINE)
        except OSError:
            return 0
    return int(found[1]) if found else 0
