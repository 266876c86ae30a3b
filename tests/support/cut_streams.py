"""A whole web worker in one process, beside an engine that dies at random moments.

A program: python -m gevent.monkey cut_streams.py FOLDER SEED ROUNDS

Only the engine is not real: it sends random outputs, and ends with `Failed`, without a word, or within a message. All clients
are in the same process, too, and some read slowly or leave. Each round checks that

* whatever the engine has finished is complete, and nothing else looks complete;
* a stream has all that was sent before the end, then exactly one error; an answer that has not begun has a status of its own.

In the end, nothing is left of any request: no file, no greenlet, no thread. Prints how many answers were complete and cut.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import http.client
import io
import itertools
import json
import os
import random
import re
import socket
import sys
import threading
import time
from pathlib import Path

import gevent
from capabilities import capabilities
from fault_clients import ALL_APIS, Api, Ending
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.sock import TCPSocket
from raw_http import request

from lmi_handlers.core.errors import EngineDead
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.engine.messages import Outputs, Ready, SequenceOutput, Submit, engine_end, failed
from lmi_handlers.engine.settings import SOCKET_VARIABLE
from lmi_handlers.engine.status import EngineState
from lmi_handlers.launch.app import ModelApp, create_app
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.web.body_reader import BodyReader
from lmi_handlers.web.gevent_threads import threads_beside
from lmi_handlers.web.gevent_worker import ClientLimitingWorker
from lmi_handlers.workers.channel import frame

CLIENTS = 12
PATIENCE = 60.0
"""Seconds for a round, far less than `predict_timeout`: an answer that waits for its deadline is one that hangs."""

PROPERTIES = "option.rolling_batch=echo\noption.predict_timeout=600\noption.dialect=mindie\noption.console=false\n"
_NUMBER = re.compile(rb"number (\d+)")
_LETTERS = b"abcdefgh "
_LARGE = 1100


class Engine:
    """Accepts the worker again and again. `submitted` has the requests of the current connection by what they say."""

    def __init__(self, path: Path, bundle: Path) -> None:
        self.submitted: dict[int, int] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._ready = frame(Ready(str(bundle), capabilities(vocab_size=257)))

    def accept(self) -> None:
        self._sock, _ = self._listener.accept()
        self.submitted = {}
        gevent.spawn(self._read, self._sock, self.submitted)
        self._sock.sendall(self._ready)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    @staticmethod
    def _read(sock: socket.socket, submitted: dict[int, int]) -> None:
        for message in engine_end(sock).receive():
            if isinstance(message, Submit):
                found = _NUMBER.search(bytes(token for token in message.prompts[0].token_ids if token < 256))
                assert found is not None
                submitted[int(found[1])] = message.number


class Answers:
    """What the engine of a round sends: random outputs, then its end. `text` has what each request was sent."""

    def __init__(self, submitted: dict[int, int], rng: random.Random) -> None:
        self.text = dict.fromkeys(submitted, "")
        self.finished: set[int] = set()
        self._submitted = submitted
        self._rng = rng

    def pieces(self) -> list[bytes]:
        """The bytes in the pieces in which they are written. Whatever is in one piece arrives at once."""
        rng = self._rng
        frames = [frame(Outputs(outputs)) for _ in range(rng.randrange(12)) if (outputs := self._step())]
        frames += self._end()
        joined = [[frames[0]]] if frames else []
        for each in frames[1:]:
            joined.append([each]) if rng.random() < 0.5 else joined[-1].append(each)
        return [b"".join(each) for each in joined]

    def _step(self) -> list[SequenceOutput]:
        rng = self._rng
        return [self._output(key) for key in self._running() if rng.random() < 0.8]

    def _output(self, key: int) -> SequenceOutput:
        rng = self._rng
        length = rng.choice([1, 1, 1, 2, 3, 40, _LARGE if rng.random() < 0.1 else 1])
        tokens = rng.choices(_LETTERS, k=length)
        ends = rng.random() < 0.05
        self.text[key] += bytes(tokens).decode()
        if ends:
            self.finished.add(key)
        reason = FinishReason.LENGTH if ends else None
        output = TokenOutput(request_id="", token_ids=tokens, finish_reason=reason)
        return SequenceOutput(self._submitted[key], 0, output, 0.0)

    def _end(self) -> list[bytes]:
        error = EngineDead("the engine died, as the test asked")
        told = [frame(failed(self._submitted[key], error)) for key in self._running()]
        self._rng.shuffle(told)
        kind = self._rng.choice(["told", "in part", "silent", "within a message"])
        if kind == "told":
            return told
        if kind == "in part":
            return told[: len(told) // 2]
        return [frame(Outputs([self._beyond()]))[:-3]] if kind == "within a message" else []

    def _beyond(self) -> SequenceOutput:
        return SequenceOutput(1, 0, TokenOutput(request_id="", token_ids=[1] * 50), 0.0)

    def _running(self) -> list[int]:
        return [key for key in self.text if key not in self.finished]


class Worker:
    """gunicorn's worker, without its arbiter and its listener's loop."""

    def __init__(self, app: ModelApp) -> None:
        config = Config()
        config.set("pre_request", lambda _, request: BodyReader(request))
        ClientLimitingWorker.client_timeout = 60.0
        sockets = [TCPSocket(("127.0.0.1", 0), config, None)]
        self._worker = ClientLimitingWorker(0, 0, sockets, None, 60, config, Logger(config))
        self._worker.wsgi = app
        self._worker.patch()
        [self._listener] = self._worker.sockets

    def connect(self, data: bytes, send_buffer: int) -> socket.socket:
        """Return a client's end of a new connection on which `data` has been sent."""
        server, client = socket.socketpair()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        gevent.spawn(self._worker.handle, self._listener, server, ("127.0.0.1", 1))
        client.sendall(data)
        return client


class _Received:
    """A response's bytes, as `http.client` reads them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def ask(worker: Worker, api: Api, number: int, rng: random.Random) -> Ending | None:
    """How a request ends, None if its client leaves."""
    slow, leaves = rng.random() < 0.4, rng.random() < 0.1
    data = request(api.body(f"number {number}", 4000), api.path, "Connection: close")
    parts: list[bytes] = []
    with worker.connect(data, 2048 if slow else 1 << 16) as client:
        while part := client.recv(rng.choice([100, 1000, 5000]) if slow else 1 << 16):
            parts.append(part)
            if leaves and len(parts) > 2:
                return None
            if slow and rng.random() < 0.3:
                gevent.sleep(rng.choice([0, 0.001, 0.01]))
    response = http.client.HTTPResponse(_Received(b"".join(parts)))  # type: ignore[arg-type]  # reads it as a file
    response.begin()
    return api.ending(response.status, response.read())


def judge(api: Api, number: int, ending: Ending | None, answers: Answers) -> str:
    """What became of a request. Fails unless that is as it should be."""
    if ending is None:
        return "left"
    text, found = answers.text[number], (api.path, ending)
    assert ending.complete == (number in answers.finished), found
    if ending.complete:
        assert ending.text == text, found
        return "complete"
    assert ending.status == 200 or ending.status >= 424, found
    if ending.status == 200:  # has begun, so it has all of it
        assert ending.text == text, (found, text)
        return "cut"
    return "refused"


def play(engine: Engine, worker: Worker, rng: random.Random) -> collections.Counter[str]:
    """One round."""
    engine.accept()
    asked = {number: rng.choice(ALL_APIS) for number in range(CLIENTS)}
    clients = {number: gevent.spawn(ask, worker, api, number, rng) for number, api in asked.items()}
    while len(engine.submitted) < CLIENTS:
        gevent.sleep(0.001)
        assert not any(client.ready() for client in clients.values()), [client.value for client in clients.values()]
    answers = Answers(engine.submitted, rng)
    for piece in answers.pieces():
        engine.send(piece)
        gevent.sleep(rng.choice([0, 0, 0.001, 0.003]))
    engine.close()
    gevent.joinall(list(clients.values()), raise_error=True)
    return collections.Counter(judge(asked[number], number, clients[number].value, answers) for number in asked)


def held() -> tuple[int, int, int]:
    """How many files, greenlets and threads there are, without the threads of the pool."""
    gc.collect()
    greenlets = sum(isinstance(each, gevent.Greenlet) and not each.dead for each in gc.get_objects())
    return len([*Path("/proc/self/fd").iterdir()]), greenlets, threading.active_count()


def settled(before: tuple[int, int, int]) -> bool:
    return all(now <= then for now, then in zip(held(), before, strict=True))


def main() -> None:
    folder, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    (folder / "metrics").mkdir()
    (folder / "serving.properties").write_text(PROPERTIES)
    build_byte_bundle(folder)
    os.environ |= {SOCKET_VARIABLE: str(folder / "engine.sock"), "LMI_MODEL_DIR": str(folder)}
    engine = Engine(folder / "engine.sock", folder)
    app = create_app()
    assert isinstance(app, ModelApp)
    app.use_threads(threads_beside())
    worker, before = Worker(app), None
    total: collections.Counter[str] = collections.Counter()
    for number in itertools.count():
        with gevent.Timeout(PATIENCE, AssertionError(f"round {number} of seed {seed} hangs")):
            total += play(engine, worker, random.Random(f"{seed}-{number}"))
        while app.model.state is EngineState.READY:
            gevent.sleep(0.001)
        if number == rounds:
            break
        if number == 0:  # which has made what lasts
            before = held()
    assert before is not None
    deadline = time.monotonic() + PATIENCE
    while not settled(before):
        assert time.monotonic() < deadline, f"left (files, greenlets, threads): {held()}, before: {before}"
        gevent.sleep(0.05)
    print(json.dumps(total))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.stdout.flush()
    os._exit(0)  # whatever else waits for an engine
