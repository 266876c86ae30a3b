"""The engine process's server for web workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import queue
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest
from channels import worker_connection
from engine_thread import Engine, assert_engine_is_free, submit, texts_of
from facts import says
from prompts import encoded
from waiting import wait_until

from lmi_handlers.core.errors import (
    RequestFailed,
)
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.loop import Disconnected, Inbox
from lmi_handlers.engine.messages import (
    Loading,
    Outputs,
    SequenceOutput,
    Submit,
    Sync,
    Synced,
)
from lmi_handlers.engine.process import start_repeating
from lmi_handlers.engine.worker_server import WorkerServer
from lmi_handlers.workers import channel as channel_module


def test_output_that_exceeds_the_message_size_fails_its_request(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "MAX_MESSAGE_SIZE", 20_000)
        other = submit(client, b"ab" * 500)
        with pytest.raises(RequestFailed, match="too long to be sent"):
            texts_of(submit(client, b"x" * 2000, prompt_logprobs=5, ignore_eos=True))
        assert texts_of(other) == [b"ab" * 500]
    assert_engine_is_free(client)


def test_only_the_worker_that_sent_an_invalid_message_is_disconnected(engine: Engine, client: EngineClient) -> None:
    with worker_connection(engine.path) as (sock, channel):
        messages = channel.receive()
        assert next(messages) == engine.ready
        channel.send(Submit(1, "r", encoded(b"x HANG@2"), SamplingParams()))
        assert isinstance(next(messages), Outputs)
        sock.sendall(b"\0\0\0\1\xc1")
        assert list(messages) == []
    assert_engine_is_free(client)


def test_flush_waits_for_all_slow_workers_together(tmp_path: Path) -> None:
    server = WorkerServer(tmp_path / "engine.sock", queue.SimpleQueue())
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "engine.sock"))
        wait_until(lambda: len(server._connections) == 12)
        server.announce(Loading("x" * 10_000_000, 0.0))
        wait_until(lambda: all(connection._waiting.empty() for connection in server._connections))
        started = time.monotonic()
        server.flush()
        assert time.monotonic() - started < 8, "the workers were waited for one after the other, for a second each"


def test_what_was_announced_is_settled_once_all_workers_have_handled_it_or_are_gone(
    engine: Engine, client: EngineClient
) -> None:
    engine.server.settle(60)  # the client answers
    with worker_connection(engine.path) as (_, silent), worker_connection(engine.path) as (_, gone):
        messages, last = silent.receive(), gone.receive()
        assert next(messages) == next(last) == engine.ready
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            settled = thread.submit(engine.server.settle, 60)
            asked = next(messages)
            assert isinstance(asked, Sync)
            assert isinstance(next(last), Sync)
            gone.close()
            assert not settled.done()
            silent.send(Synced(asked.number))
            settled.result(60)
        engine.server.settle(0.1)  # does not wait for one that hangs
        assert isinstance(next(messages), Sync)
    assert_engine_is_free(client)


def test_repeating_thread_survives_errors_and_logs_the_first(caplog: pytest.LogCaptureFixture) -> None:
    calls = itertools.count()

    def action() -> None:
        if (call := next(calls)) < 3:
            raise ValueError(f"not yet: {call}")
        reached.set()

    reached = threading.Event()
    start_repeating(0.01, action)
    assert reached.wait(10)
    assert caplog.text.count("Traceback") == 1


def test_worker_that_does_not_read_is_disconnected_and_its_places_are_freed(
    engine: Engine, client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: len(engine.server._connections) == 1)
    engine.server.patience = 0.4  # of the next one
    with worker_connection(engine.path) as (_, channel):
        messages = channel.receive()
        assert next(messages) == engine.ready
        params = SamplingParams(ignore_eos=True, max_tokens=3000, logprobs=20)
        # It takes both places, with more output than a socket buffers.
        channel.send(Submit(1, "r", encoded(b"ab") * 2, params))
        assert isinstance(next(messages), Outputs)
        wait_until(lambda: len(engine.server._connections) == 1, timeout=60)
    assert says(caplog.text, "web worker not read disconnecting")
    assert_engine_is_free(client)


def test_only_a_few_steps_wait_in_the_kernel_for_a_worker_that_falls_behind(tmp_path: Path) -> None:
    server = WorkerServer(tmp_path / "engine.sock", queue.SimpleQueue())
    step = Outputs([SequenceOutput(1, 0, TokenOutput(request_id="", token_ids=[1] * 4_000), 0.0)])
    with worker_connection(tmp_path / "engine.sock"):
        wait_until(lambda: server._connections)
        (connection,) = server._connections
        written = 0
        with contextlib.suppress(AssertionError):  # the writer waits for the worker, and the next steps can be joined
            while written < 100:
                connection.send(step)
                wait_until(connection._waiting.empty, timeout=2)
                written += 1
    assert 0 < written < 25


def test_disconnected_workers_leave_no_threads_or_file_descriptors_behind(tmp_path: Path) -> None:
    process = psutil.Process()
    inbox: Inbox = queue.SimpleQueue()
    server = WorkerServer(tmp_path / "engine.sock", inbox)
    before = 0, 0
    for number in range(20):
        with worker_connection(tmp_path / "engine.sock") as (_, channel):
            state = next(channel.receive())
            assert isinstance(state, Loading)
            assert state.phase == "starting"
        assert isinstance(inbox.get(timeout=10)[1], Disconnected)
        if number == 0:
            before = process.num_fds() + 1, threading.active_count() + 1  # the first connection may still be closing
    wait_until(lambda: threading.active_count() <= before[1])
    wait_until(lambda: process.num_fds() <= before[0])
    server.announce(Loading("still here", 0.0))
