"""Rounds of random faults against a running server, checked by invariants.

In each round, a few well-behaved clients request answers that are known in advance while something goes wrong:

* each answer ends correctly within `predict_timeout`, and its text is a prefix of the undisturbed answer;
* a misbehaving client does not affect other clients: their answers are complete;
* `/ping` always answers. It returns 200 unless the engine has failed, and 503 if it has;
* afterwards the server answers again, and nothing is left over: no sequence, no socket, no open file, no process, no
  file in its TMPDIR, no memory.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests
from fault_clients import APIS, Api, Ending, Lost, Malformed
from raw_http import connect, dechunked, head, read_to_end, request
from serving import Server
from waiting import wait_until

GRACE = 10.0
"""Seconds that a request may take beyond `predict_timeout`, because the test machine may be busy."""

PING_TIMEOUT = 10.0
RECOVERY = 90.0
_MEMORY = 96 << 20


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. `run` causes it. `ends_engine` is None if the engine may or may not survive.

    If it `cuts_connections`, answers may end with their connection.
    """

    name: str
    run: Callable[[Rounds, random.Random], None]
    ends_engine: bool | None = False
    replaces_workers: bool = False
    cuts_connections: bool = False


_USED_AGAIN = re.compile(r"[^/]+/((metrics|recent)/\d|sessions)")
"""Files of web workers: as many as there were processes at once, which is less than ten, because a new one takes the file
of one that has ended. The folder of the sessions comes with the first one."""


@dataclass
class Report:
    """Results of the rounds. `slowest_ping` and `longest_outage` (from the fault to the next 200) are in seconds."""

    rounds: int = 0
    requests: int = 0
    complete: int = 0
    failed: int = 0
    lost: int = 0
    slowest_ping: float = 0.0
    longest_outage: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    apis: dict[str, int] = field(default_factory=dict)
    most_grown: dict[str, float] = field(default_factory=dict)
    """The most memory, in MiB, that a process of each kind has gained."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds: TCP connections, open files (without connections), resident memory in bytes."""

    sockets: int
    files: int
    memory: int

    @classmethod
    def of(cls, process: psutil.Process) -> Footprint:
        connections = process.net_connections("tcp")
        established = sum(one.status != psutil.CONN_LISTEN for one in connections)
        return cls(established, process.num_fds() - len(connections), process.memory_info().rss)


class Pinger:
    """Requests `/ping` every 50 ms over a new connection each time, as SageMaker does."""

    def __init__(self, server: Server) -> None:
        self.statuses: list[int] = []
        self.slowest = 0.0
        self.problems: list[str] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            started = time.monotonic()
            try:
                self.statuses.append(self._server.ping().status_code)
            except requests.RequestException as error:
                self.problems.append(f"/ping: {error!r}")
            self.slowest = max(self.slowest, time.monotonic() - started)


class Rounds:
    """Runs rounds of faults against `server`, which has the given `predict_timeout` and `max_request_size`.

    `answers` maps an API and a prompt to the undisturbed answer of at most `max_tokens` tokens. `disk` is the server's
    TMPDIR, if it has one of its own.
    """

    def __init__(
        self,
        server: Server,
        answers: Callable[[Api, str], str],
        prompts: list[str],
        *,
        max_tokens: int,
        predict_timeout: float,
        max_request_size: int,
        clients: int = 6,
        apis: Sequence[Api] = APIS,
        disk: Path | None = None,
    ) -> None:
        self.server = server
        self.apis = apis
        self.disk = disk
        self.max_request_size = max_request_size
        self.max_tokens = max_tokens
        self.prompts = prompts
        self._answers = answers
        self.predict_timeout = predict_timeout
        self._clients = clients
        self.report = Report()

    def run(self, plan: Iterable[list[Fault]], seed: int) -> Report:
        """Run one round per list of faults. The faults of a list happen at the same time."""
        rng = random.Random(seed)
        self._settle("before the first round")
        before = self._footprints()
        processes, files = self._processes(), self._files()
        pinger = Pinger(self.server)
        try:
            for number, faults in enumerate(plan):
                names = f"round {number} ({', '.join(fault.name for fault in faults)}; seed {seed})"
                replaces = any(fault.replaces_workers for fault in faults)
                if replaces:
                    self._compare(before, self._footprints())
                self._round(rng, faults, names, pinger)
                if replaces:
                    before = self._footprints()
        finally:
            pinger.stop()
        self.report.slowest_ping = pinger.slowest
        assert not pinger.problems, pinger.problems
        assert pinger.slowest < PING_TIMEOUT
        self._compare(before, self._footprints())
        # It notices a little later that a client has closed its connection, or that a process has ended.
        wait_until(lambda: self._left_open(before) is None)
        wait_until(lambda: self._processes() == processes)
        assert not (left := self._files() ^ files), left
        return self.report

    def _footprints(self) -> dict[psutil.Process, Footprint]:
        """What the processes hold that faults do not end: gunicorn's arbiter, the engine's supervisor, the web workers."""
        arbiter = psutil.Process(self.server.process.pid)
        lasting = [arbiter, self.server.supervisor(), *self.server.web_workers()]
        try:
            return {process: Footprint.of(process) for process in lasting}
        except psutil.NoSuchProcess as error:
            raise AssertionError(f"{error}:\n{self.server.log[-3000:]}") from error

    def _compare(self, before: dict[psutil.Process, Footprint], after: dict[psutil.Process, Footprint]) -> None:
        assert before.keys() == after.keys(), "a web worker or the supervisor was replaced"
        kinds = ["arbiter", "supervisor", *["web worker"] * len(before)]
        for kind, (process, footprint) in zip(kinds, before.items(), strict=False):
            grown = after[process].memory - footprint.memory
            assert grown < _MEMORY, f"the {kind} has grown by {grown >> 20} MB"
            self.report.most_grown[kind] = max(round(grown / (1 << 20), 1), self.report.most_grown.get(kind, 0.0))

    def _left_open(self, before: dict[psutil.Process, Footprint]) -> str | None:
        for process, after in self._footprints().items():
            if after.sockets > before[process].sockets + 2 or after.files > before[process].files + 2:
                return f"{process}: {before[process]}, then {after}"
        return None

    def _processes(self) -> int:
        return len(psutil.Process(self.server.process.pid).children(recursive=True))

    def _files(self) -> set[str]:
        """The names in the server's TMPDIR, without those that are used again."""
        names = () if self.disk is None else (str(path.relative_to(self.disk)) for path in self.disk.rglob("*"))
        return {name for name in names if not _USED_AGAIN.fullmatch(name)}

    def _round(self, rng: random.Random, faults: list[Fault], names: str, pinger: Pinger) -> None:
        seen, known = len(pinger.statuses), len(pinger.problems)
        spared = all(fault.ends_engine is False for fault in faults)
        cuts = any(fault.cuts_connections for fault in faults)
        with concurrent.futures.ThreadPoolExecutor(self._clients + len(faults)) as pool:
            asked = [(rng.choice(self.apis), rng.choice(self.prompts)) for _ in range(self._clients)]
            answers = [pool.submit(self._ask, *one) for one in asked]
            time.sleep(rng.uniform(0.05, 0.5))
            started = time.monotonic()
            done = [pool.submit(fault.run, self, random.Random(rng.random())) for fault in faults]
            for (api, prompt), answer in zip(asked, answers, strict=True):
                ending = answer.result()
                if cuts and isinstance(ending, Lost):
                    self.report.lost += 1
                else:
                    self._judge(api, prompt, ending, names, may_fail=not spared)
            for fault, one in zip(faults, done, strict=True):
                assert (error := one.exception()) is None, (
                    f"{names}: {fault.name}: {error!r}\n{self.server.log[-3000:]}"
                )
        self._settle(names)
        if cuts:
            del pinger.problems[known:]
        statuses = set(pinger.statuses[seen:])
        if spared:
            # A web worker that starts while the engine is stopped cannot know that it is well.
            doubts = cuts or {"pause", "SIGHUP"} <= {fault.name for fault in faults}
            assert statuses <= ({200, 503} if doubts else {200}), (
                f"{names}: /ping was not 200 though the engine was well"
            )
        else:
            self.report.longest_outage = max(self.report.longest_outage, time.monotonic() - started)
        if any(fault.ends_engine for fault in faults):
            assert 503 in statuses, f"{names}: /ping was 200 throughout"
        self.report.rounds += 1
        for fault in faults:
            self.report.faults[fault.name] = self.report.faults.get(fault.name, 0) + 1

    def _ask(self, api: Api, prompt: str) -> Ending | Malformed:
        patience = self.predict_timeout + GRACE
        started = time.monotonic()
        try:
            ending = api.ask(self.server.url, prompt, self.max_tokens, patience)
        except Malformed as error:
            return error
        took = time.monotonic() - started
        return ending if took < patience else Malformed(f"{api.path}: the end came after {took:.1f} s")

    def _judge(self, api: Api, prompt: str, ending: Ending | Malformed, names: str, *, may_fail: bool) -> None:
        assert isinstance(ending, Ending), f"{names}: {ending}"
        expected = self._answers(api, prompt)
        self.report.requests += 1
        self.report.apis[api.path] = self.report.apis.get(api.path, 0) + 1
        if ending.complete:
            assert ending.text == expected, f"{names}: {api.path}"
            self.report.complete += 1
            return
        assert may_fail, f"{names}: {api.path} failed with {ending.status} through no fault of its own"
        assert expected.startswith(ending.text), f"{names}: {api.path}: {ending.text!r} is no prefix of {expected!r}"
        # 408 is what Aleph Alpha's API says of an answer that takes too long, and 529 is what Anthropic's says of a busy server.
        assert ending.status in (200, 408, 424, 500, 503, 504, 529), f"{names}: {api.path}: {ending.status}"
        self.report.failed += 1

    def _settle(self, names: str) -> None:
        """Wait until the server answers normally again and is idle."""
        deadline = time.monotonic() + RECOVERY
        while True:
            problem = self._unsettled()
            if problem is None:
                return
            assert self.server.process.poll() is None, f"{names}: the server has ended:\n{self.server.log[-3000:]}"
            assert time.monotonic() < deadline, f"{names}: afterwards {problem}"
            time.sleep(0.1)

    def _unsettled(self) -> str | None:
        try:
            if self.server.ping().status_code != 200:
                return "/ping is not 200"
        except requests.ConnectionError as error:
            return f"/ping cannot be asked: {error}"
        ending = self._ask(APIS[0], self.prompts[0])
        if ending != Ending(self._answers(APIS[0], self.prompts[0]), complete=True, status=200):
            return f"the answer is {ending}"
        time.sleep(0.3)  # `/metrics` is up to a tenth of a second old
        metrics = requests.get(f"{self.server.url}/metrics", timeout=60).text.splitlines()
        load = [line for line in metrics if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))]
        assert len(load) == 2
        return next((line for line in load if float(line.rpartition(" ")[2])), None)


# The engine


def _kill(rounds: Rounds, _: random.Random) -> None:
    engine = rounds.server.engine()
    engine.kill()
    _await_end(engine)


def _stop(rounds: Rounds, _: random.Random) -> None:
    engine = rounds.server.engine()
    deadline = time.monotonic() + RECOVERY
    with contextlib.suppress(psutil.NoSuchProcess):
        while time.monotonic() < deadline:
            engine.suspend()  # repeatedly, because a pause in the same round resumes the engine
            time.sleep(0.2)
    _await_end(engine)


def _await_end(engine: psutil.Process) -> None:
    gone, _ = psutil.wait_procs([engine], timeout=RECOVERY)
    assert gone, "the engine is still running after a fault that ends it"


def _pause(rounds: Rounds, rng: random.Random) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, AssertionError):  # another fault of the round may have ended it
        engine = rounds.server.engine()
        engine.suspend()
        time.sleep(rng.uniform(0.1, 0.8))
        engine.resume()


def _deadly_prompt(word: str) -> Callable[[Rounds, random.Random], None]:
    ask = _prompt(word)

    def run(rounds: Rounds, rng: random.Random) -> None:
        engine = rounds.server.engine()
        ask(rounds, rng)
        _await_end(engine)

    return run


def _prompt(word: str) -> Callable[[Rounds, random.Random], None]:
    def run(rounds: Rounds, rng: random.Random) -> None:
        api, prompt = rng.choice(rounds.apis), f"please {word}@{rng.randint(1, 12)} now"
        ending = api.ask(rounds.server.url, prompt, 100, 60)
        assert not ending.complete
        # A chat's prompt begins with the role.
        assert any(whole.startswith(ending.text) for whole in (prompt, f"user: {prompt}")), ending

    return run


# Clients


def _leave(rounds: Rounds, rng: random.Random) -> None:
    with connect(rounds.server) as sock:
        stream = rng.random() < 0.7
        parameters = {"max_new_tokens": 1_000, "ignore_eos_token": True}
        sock.sendall(request({"inputs": rng.choice(rounds.prompts), "parameters": parameters, "stream": stream}))
        if stream:
            sock.recv(200)
        else:
            time.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.5:  # with a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _never_read(rounds: Rounds, rng: random.Random) -> None:
    """Requests a long answer and reads nothing until the deadline, by which the server must have ended the answer."""
    body = {"prompt": rng.choice(rounds.prompts), "max_tokens": 100_000, "ignore_eos": True, "n": 8, "logprobs": 20}
    with connect(rounds.server, receive_buffer=4096) as sock:
        sock.sendall(request({**body, "stream": True}, "/v1/completions", "Connection: close"))
        status = sock.recv(12).removeprefix(b"HTTP/1.1 ")
        assert status in (b"200", b"424", b"500", b"503", b"504"), status  # not 200 if the engine has just ended
        time.sleep(rounds.predict_timeout + 1)
        deadline = time.monotonic() + 10
        with contextlib.suppress(ConnectionError):
            while sock.recv(1 << 20):
                assert time.monotonic() < deadline, "the server is still sending to a client that does not read"


def _half(whole: bytes) -> Callable[[Rounds, random.Random], None]:
    def run(rounds: Rounds, rng: random.Random) -> None:
        sockets = [connect(rounds.server) for _ in range(20)]
        for sock in sockets:
            sock.sendall(whole[: rng.randint(1, len(whole) - 1)])
        time.sleep(rng.uniform(0, 1.0))
        for sock in sockets:
            sock.close()

    return run


def _overlong(rounds: Rounds, rng: random.Random) -> None:
    """Sends a body over the limit, announced or chunked. It gets a 413, or the connection is closed if it keeps sending."""
    size = rounds.max_request_size + rng.randint(1, 1 << 20)
    with connect(rounds.server) as sock:
        try:
            if rng.random() < 0.5:
                sock.sendall(head("/invocations", f"Content-Length: {size}") + b"x" * size)
            else:
                chunked = head("/invocations", "Transfer-Encoding: chunked")
                sock.sendall(chunked + (b"%x\r\n" % size) + b"x" * size + b"\r\n0\r\n\r\n")
            answer = sock.recv(100)
        except ConnectionError:
            return
    assert not answer or b" 413 " in answer, answer


def _bad_chunk(rounds: Rounds, rng: random.Random) -> None:
    bad = rng.choice([b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"5\r\nabc", b"5;x\n\r\n", b"ffffffffffffffffffff\r\nx\r\n"])
    with connect(rounds.server) as sock:
        sock.sendall(head("/invocations", "Transfer-Encoding: chunked") + bad)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(100)
    assert b" 400 " in answer or b" 408 " in answer, answer


# What is beside the engine


def _kill_shadow(rounds: Rounds, _: random.Random) -> None:
    if (shadow := rounds.server.shadow()) is not None:
        shadow.kill()


def _kill_worker(rounds: Rounds, rng: random.Random) -> None:
    before = rounds.server.web_workers()
    killed = rng.choice(before)
    killed.kill()
    wait_until(lambda: killed not in (now := rounds.server.web_workers()) and len(now) == len(before), RECOVERY)


def _repeat(rounds: Rounds, rng: random.Random) -> None:
    """Leaves, and repeats the request: it gets the whole answer, whichever web worker has it."""
    api, prompt, key = APIS[1], rng.choice(rounds.prompts), f"Idempotency-Key: {rng.random()}"
    data = request(api.body(prompt, rounds.max_tokens), api.path, key, "Connection: close")
    with connect(rounds.server, data) as sock, contextlib.suppress(ConnectionError):
        sock.recv(rng.randint(1, 2000))
    answer = read_to_end(connect(rounds.server, data))
    if answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n0\r\n\r\n"):
        ending = api.ending(200, dechunked(answer))
        assert prompt.startswith(ending.text), ending
        assert ending.text == prompt or not ending.complete, ending


ENGINE_FAULTS = [Fault("kill", _kill, ends_engine=True), Fault("stop", _stop, ends_engine=True)]

ECHO_FAULTS = [
    Fault("die", _deadly_prompt("DIE"), ends_engine=True),
    Fault("crash", _deadly_prompt("CRASH"), ends_engine=True),
    Fault("hang", _prompt("HANG"), ends_engine=None),  # if it is the only running request, the engine looks stuck
    Fault("fail", _prompt("RAISE")),
]

BESIDE_FAULTS = [
    Fault("kill the shadow", _kill_shadow),
    Fault("kill a web worker", _kill_worker, replaces_workers=True, cuts_connections=True),
    Fault("repeat", _repeat),
]
"""What needs a shadow, several web workers, and `option.retry_grace`. An echo's answer is its prompt."""

CLIENT_FAULTS = [
    Fault("pause", _pause),
    Fault("leave", _leave),
    Fault("never read", _never_read),
    Fault("half a head", _half(b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")),
    Fault("half a body", _half(request({"inputs": "x" * 1000}))),
    Fault("overlong body", _overlong),
    Fault("bad chunk", _bad_chunk),
]


def endless_plan(faults: list[Fault], seed: int, seconds: float) -> Iterator[list[Fault]]:
    """Plan rounds until this time has passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield from itertools.takewhile(lambda _: time.monotonic() < deadline, plan(faults, seed))
        seed += 1


def plan(faults: list[Fault], seed: int, rounds: int | None = None) -> list[list[Fault]]:
    """Plan rounds of up to three simultaneous faults. At most one of them ends the engine; in every third round, none does.

    No fault occurs a second time before each has occurred once. By default, there are as many rounds as that takes.
    """
    rng = random.Random(seed)
    to_come = set(faults)
    harmless = _turns([fault for fault in faults if fault.ends_engine is False], rng)
    deadly = _turns([fault for fault in faults if fault.ends_engine is not False], rng)
    planned: list[list[Fault]] = []
    while to_come if rounds is None else len(planned) < rounds:
        at_once = [next(deadly), next(harmless)] if len(planned) % 3 < 2 else [next(harmless) for _ in range(3)]
        to_come -= {*at_once}
        planned.append([*dict.fromkeys(at_once)])  # a fault beside itself is no other fault
    return planned


def _turns(faults: list[Fault], rng: random.Random) -> Iterator[Fault]:
    while True:
        yield from rng.sample(faults, len(faults))
