"""What hostile clients and a failing machine do to a server, as faults for `fault_rounds`: none costs another client anything."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import requests
from fault_rounds import RECOVERY, Fault, Rounds
from full_disk import fill
from raw_http import connect, read_to_end, request
from waiting import wait_until

SESSION_ID = "X-Amzn-SageMaker-Session-Id"
OUTAGE = {408, 424, 500, 503, 504, 529}
"""Statuses that a request may get while another fault of the round has ended the engine."""

BODIES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"[" * 100_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"inputs":"\\ud800"}',
    b'{"inputs":"a","inputs":"b","parameters":{"temperature":NaN}}',
    b'{"inputs":"a","parameters":{"max_new_tokens":1e400}}',
    b'{"inputs":"a","parameters":{"max_new_tokens":' + b"9" * 10_000 + b"}}",
    b'{"inputs":"a","parameters":{"stop":' + json.dumps(["x"] * 100_000).encode() + b"}}",
    b'{"prompt":"a","n":100000}',
    b'{"prompt":"a","logit_bias":' + json.dumps({str(key): 1 for key in range(100_000)}).encode() + b"}",
    b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]}',
    b'{"messages":' + json.dumps([{"role": "user", "content": ""}] * 50_000).encode() + b"}",
    b"\xff\xfe\x00" * 1000,
]

GRAMMARS: list[dict[str, object]] = [
    {"type": "json", "value": {"$ref": "#"}},
    {"type": "json", "value": {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}},
    {"type": "json", "value": {"enum": [str(number) for number in range(20_000)]}},
    {"type": "json", "value": {"type": "string", "pattern": "(a|a)*{99999}"}},
    {"type": "regex", "value": "((a{1,1000}){1,1000}){1,1000}"},
    {"type": "regex", "value": "(" * 1000},
    {"type": "regex", "value": "(a+)+$" * 500},
]

PATHS = [
    "//adapters",
    "/./adapters",
    "/ping/../adapters",
    "/adapters%2f..",
    "/%61dapters",
    "/adapters;a=b",
    "/invocations/" + "x" * 5_000,
    "/models/%00/invoke",
    "/predictions/..%2f..%2fetc",
    "/console/../../../etc/passwd",
    "/v1/models/%F0%28%8C%28",
]

HEADERS = ["SCRIPT_NAME: /ping", "X-Forwarded-For: 10.0.0.1", "Script_Name: x", "X-Amzn-SageMaker-Session-Id: ../x"]


def _bodies(rounds: Rounds, rng: random.Random) -> None:
    for body in rng.sample(BODIES, 6):
        api = rng.choice(rounds.apis)
        answer = requests.post(
            rounds.server.url + api.path, data=body, headers={"Content-Type": "application/json"}, timeout=60
        )
        is_ignored = api.path == "/" and b'"stop"' in body  # no field of MindIE's
        least = 200 if is_ignored else 400
        assert least <= answer.status_code < 500 or answer.status_code in OUTAGE, (
            api.path,
            body[:80],
            answer.status_code,
        )
        assert "Traceback" not in answer.text


def _grammars(rounds: Rounds, rng: random.Random) -> None:
    grammar = rng.choice(GRAMMARS)
    body = {"inputs": "a", "parameters": {"max_new_tokens": 8, "grammar": grammar}}
    answer = requests.post(f"{rounds.server.url}/generate", json=body, timeout=rounds.predict_timeout + 30)
    assert answer.status_code in {200, 400, 422, *OUTAGE}, (grammar, answer.status_code, answer.text)


def _paths(rounds: Rounds, rng: random.Random) -> None:
    for path in rng.sample(PATHS, 6):
        method = rng.choice(["GET", "POST", "DELETE", "PROPFIND"])
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{rng.choice(HEADERS)}\r\n\r\n"
        answer = read_to_end(connect(rounds.server, head.encode()))
        status = int(answer.split()[1]) if answer else 400
        assert 400 <= status < 500 or status == 503, (method, path, answer[:200])


def _crowd(rounds: Rounds, rng: random.Random) -> None:
    """More complete requests at once than a small limit of open files has room for. Each is answered."""
    whole = request({"inputs": "abc"}, "/generate", "Connection: close")
    sockets = [connect(rounds.server, whole) for _ in range(rng.randint(100, 300))]
    statuses = {int((read_to_end(sock) or b"HTTP/1.1 0 ").split()[1]) for sock in sockets}
    assert statuses <= {200, *OUTAGE}, statuses


def _turns(rounds: Rounds, rng: random.Random) -> None:
    """Several turns of one session at once: one gets an answer, the others hear that there is another."""
    url = rounds.server.url
    begun = requests.post(f"{url}/invocations", json={"requestType": "NEW_SESSION"}, timeout=60)
    if begun.status_code != 200:
        assert begun.status_code in OUTAGE | {429}, begun.text
        return
    session = {SESSION_ID: begun.headers[SESSION_ID].partition(";")[0]}

    def turn(text: str) -> int:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 10}
        return requests.post(f"{url}/invocations", json=body, headers=session, timeout=60).status_code

    with ThreadPoolExecutor(4) as pool:
        statuses = {*pool.map(turn, (rng.choice("abcd") for _ in range(4)))}
    assert statuses <= {200, 409, 429, *OUTAGE}, statuses

    def close() -> bool:
        closed = requests.post(f"{url}/invocations", json={"requestType": "CLOSE"}, headers=session, timeout=60)
        assert closed.status_code in {200, *OUTAGE} or "session not found" in closed.text, closed.text
        return closed.status_code not in OUTAGE

    wait_until(close, RECOVERY)  # what is left of it counts as a file too many


def _full_disk(rounds: Rounds, rng: random.Random) -> None:
    assert rounds.disk is not None
    filler = fill(rounds.disk, f"filler-{rng.random()}")
    try:
        time.sleep(rng.uniform(0.2, 2))
    finally:
        filler.unlink()


def _unread_log(rounds: Rounds, rng: random.Random) -> None:
    """Nobody reads the log, while more is written to it than a pipe takes."""
    assert rounds.server.log_reader is not None
    reader = psutil.Process(rounds.server.log_reader.pid)
    reader.suspend()
    try:
        with ThreadPoolExecutor(4) as pool:
            statuses = {*pool.map(lambda _: _ask_nothing(rounds), range(300))}
    finally:
        reader.resume()
    assert statuses <= {400, 422, *OUTAGE}, statuses


def _ask_nothing(rounds: Rounds) -> int:
    return requests.post(f"{rounds.server.url}/generate", json={"inputs": 1}, timeout=60).status_code


def _hang_up(rounds: Rounds, _: random.Random) -> None:
    """SIGHUP: other web workers take over, and those that were there end when their requests have."""
    before = {worker.pid for worker in rounds.server.web_workers()}
    os.kill(rounds.server.process.pid, signal.SIGHUP)
    wait_until(lambda: not before & {worker.pid for worker in rounds.server.web_workers()}, RECOVERY)


def _many_salts(rounds: Rounds, rng: random.Random) -> None:
    """Each request has another tenant, name, user and id; none of these may be kept."""
    for number in range(20):
        name = (f"{rng.random()}-{number}" * 20)[:256]
        body = {"prompt": "ab", "max_tokens": 1, "cache_salt": name, "user": name}
        headers = {
            "X-Amzn-SageMaker-Inference-Id": name[:60],
            "X-Request-Id": name[:60],
            "X-Amzn-SageMaker-Custom-Attributes": name,
        }
        answer = requests.post(f"{rounds.server.url}/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code in {200, *OUTAGE}, answer.text


def _torrent(rounds: Rounds, rng: random.Random) -> None:
    """Random bytes, half of them after a request line."""
    for _ in range(20):
        sock = connect(rounds.server)
        with contextlib.suppress(ConnectionError), sock:
            line = rng.choice([b"", b"POST /invocations HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
            sock.sendall(line + rng.randbytes(rng.randint(1, 20_000)) + b"\r\n\r\n")
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(100)
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 50")), answer


ATTACKS = [
    Fault("hostile bodies", _bodies),
    Fault("hostile grammars", _grammars),
    Fault("hostile paths", _paths),
    Fault("a crowd", _crowd),
    Fault("turns at once", _turns),
    Fault("many names", _many_salts),
    Fault("random bytes", _torrent),
]
"""What clients alone can do."""

MACHINE_FAULTS = [
    Fault("full disk", _full_disk),
    Fault("unread log", _unread_log),
    Fault("SIGHUP", _hang_up, replaces_workers=True),
]
"""What needs a disk of the server's own, a reader of its log, and the right to send it signals."""
