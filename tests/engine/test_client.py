"""The web worker's engine client, against an engine in the same process and against engines that misbehave."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from channels import accepted
from engine_thread import Engine, assert_engine_is_free, submit, texts_of
from facts import raises
from prompts import encoded
from waiting import wait_until

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    QueueFull,
    RequestFailed,
)
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.messages import (
    Loading,
    Ready,
    SequenceOutput,
    Submit,
)
from lmi_handlers.engine.status import EngineState
from lmi_handlers.workers import channel as channel_module


def test_client_reports_what_a_starting_engine_does(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    announced: list[Loading | Ready] = []
    client = EngineClient(path, announced.append)
    client.start()
    assert client.state is EngineState.STARTING
    with pytest.raises(EngineNotReady, match="starting"):
        submit(client, b"hello")
    engine = Engine(path)
    engine.server.announce(Loading("loading weights", time.monotonic() - 60))
    wait_until(lambda: client.status.phase == "loading weights")
    assert client.status.phase_seconds >= 60
    with pytest.raises(EngineNotReady, match="loading weights"):
        submit(client, b"hello")
    engine.start()
    wait_until(lambda: client.state is EngineState.READY)
    assert {message.phase for message in announced[:-1] if isinstance(message, Loading)} >= {"loading weights"}
    assert announced[-1] == Engine.ready
    engine.stop()


def test_client_receives_every_sequence(client: EngineClient) -> None:
    assert texts_of(submit(client, b"ab", b"cde", n=2), 4) == [b"ab", b"ab", b"cde", b"cde"]


def test_continued_sequence_has_only_what_is_new(client: EngineClient) -> None:
    params = SamplingParams(max_tokens=5)
    request = GenerationRequest(request_id="r", prompts=(), sampling_params=params, generated=tuple(b"ab"))
    generation = client.submit(encoded(b"abcdef"), request, Deadline(time.monotonic() + 60))
    assert texts_of(generation) == [b"cde"]


def test_client_raises_the_engines_errors(client: EngineClient) -> None:
    with pytest.raises(RequestFailed, match="as the prompt asked"):
        texts_of(submit(client, b"RAISE@2"))
    with pytest.raises(InvalidRequest, match="as the prompt asked"):
        texts_of(submit(client, b"REFUSE@1"))
    assert_engine_is_free(client)


def test_outputs_before_an_error_are_delivered(client: EngineClient) -> None:
    batches: list[list[SequenceOutput]] = []
    with pytest.raises(RequestFailed):
        batches.extend(submit(client, b"RAISE@6"))
    assert b"".join(bytes(item.output.token_ids) for batch in batches for item in batch) == b"RAISE"


def test_closing_a_generation_frees_its_places(client: EngineClient) -> None:
    for _ in range(5):
        with submit(client, b"x HANG@3", b"y HANG@3") as generation:
            next(iter(generation))
    assert_engine_is_free(client)


def test_aborting_each_sequence_ends_the_generation(client: EngineClient) -> None:
    with submit(client, b"a", b"b", ignore_eos=True) as generation:
        for batch in generation:
            for item in batch:
                generation.abort(item.index)
    assert_engine_is_free(client)


def test_deadline_or_disconnected_client_ends_a_generation(client: EngineClient) -> None:
    with pytest.raises(DeadlineExceeded):
        texts_of(submit(client, b"x HANG@1", timeout=0.1))
    with pytest.raises(ClientDisconnected):
        texts_of(submit(client, b"x HANG@1", connected=lambda: False))
    assert_engine_is_free(client)


def test_generation_that_finished_in_time_can_be_read_after_its_deadline(client: EngineClient) -> None:
    """Records of a batch are read late: they wait for the records before them."""
    generation = submit(client, b"abc")
    assert_engine_is_free(client)  # its last prompt waits for the place of that request
    generation.deadline = Deadline(time.monotonic())
    wait_until(lambda: generation.failure is not None)
    assert texts_of(generation) == [b"abc"]


def test_generation_that_is_not_read_fails_once_and_frees_its_places(
    engine: Engine, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine.backend, "_tokens_per_second", 1000
    )  # slower, or the engine joins most outputs before it sends them
    prompts = b"abc HANG@1300", b"def HANG@1300"
    generation = submit(client, *prompts, ignore_eos=True, max_tokens=None)
    sequences = engine.backend._sequences
    wait_until(lambda: [sequence.produced for sequence in list(sequences.values())] == [1299] * 2)
    generation.deadline = Deadline(time.monotonic() + 0.3)  # by then nearly all outputs have arrived
    wait_until(lambda: generation.failure is not None)
    assert_engine_is_free(client)
    failure = generation.failure
    time.sleep(0.5)  # long enough for the watcher to check again
    assert generation.failure is failure
    batches: list[list[SequenceOutput]] = []
    with pytest.raises(DeadlineExceeded):
        batches.extend(generation)
    assert generation.failure is None, "the failure's traceback would keep the generation alive"
    for index, prompt in enumerate(prompts):
        items = [item for batch in batches for item in batch if item.index == index]
        answer = bytes(token_id for item in items for token_id in item.output.token_ids)
        assert answer == (prompt * len(answer))[: len(answer)]
        assert len(answer) > 1000, "too few tokens: nothing had to be joined"
        assert len(items) < 256 + 2 * 256 + len(answer) / 100


def test_full_queue_rejects_only_the_new_request(client: EngineClient) -> None:
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(submit(client, b"x HANG@3")) for _ in range(2)]
        for generation in running:
            next(iter(generation))
        for _ in range(2):
            stack.enter_context(submit(client, b"waiting"))
        with pytest.raises(QueueFull, match="job_queue_size=2"):
            texts_of(submit(client, b"one too many"))
    assert_engine_is_free(client)


def test_lost_connection_fails_its_requests_and_is_reopened(client: EngineClient) -> None:
    generation = submit(client, b"x HANG@3")
    next(iter(generation))
    assert client._sender is not None
    client._sender._channel._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does when a process dies
    with pytest.raises(EngineDead):
        texts_of(generation)
    wait_until(lambda: client.state is EngineState.READY)
    assert_engine_is_free(client)


def test_request_that_exceeds_the_message_size_is_invalid(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "MAX_MESSAGE_SIZE", 3000)
        with pytest.raises(InvalidRequest, match="too long for the engine"):
            submit(client, b"x" * 4000)
    assert_engine_is_free(client)


def test_worker_that_cannot_load_the_model_files_reports_it_and_retries(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [FileNotFoundError("no bundle"), ValueError("not yet"), None]
    seen: list[str] = []

    def on_announcement(message: Loading | Ready) -> None:
        seen.append(client.status.phase)
        if failures and (failure := failures.pop(0)) is not None:
            raise failure

    client = EngineClient(engine.path, on_announcement)
    client.start()
    wait_until(lambda: client.state is EngineState.READY)
    assert len(seen) == 3
    assert seen[1].endswith("reconnecting: FileNotFoundError: no bundle")
    assert seen[2].endswith("reconnecting: ValueError: not yet")
    assert "no bundle" in caplog.text
    assert texts_of(submit(client, b"hello")) == [b"hello"]


def test_invalid_message_from_the_engine_fails_the_requests_and_reconnects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = EngineClient(path, lambda ready: None)
        client.start()
        for invalid, cause in ((b"\0\0\0\1\xc1", "cannot be decoded"), (b"\xff" * 4, "got 4294967295")):
            with accepted(listener) as (sock, channel):
                channel.send(Engine.ready)
                wait_until(lambda: client.state is EngineState.READY)
                generation = submit(client, b"hello")
                assert isinstance(next(channel.receive()), Submit)
                sock.sendall(invalid)
                with raises(EngineDead, "connection engine dropped"):
                    texts_of(generation)
                wait_until(lambda: client.state is EngineState.STARTING)
                assert cause in client.status.phase
                assert cause in caplog.text
        with accepted(listener) as (_, channel):
            channel.send(Engine.ready)
            wait_until(lambda: client.state is EngineState.READY)


def test_requests_end_at_their_deadline_if_the_engine_does_not_read(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = EngineClient(path, lambda ready: None)
        client.start()
        with accepted(listener) as (_, channel):
            channel.send(Engine.ready)
            wait_until(lambda: client.state is EngineState.READY)
            generations = [submit(client, b"x" * 200_000, timeout=0.5) for _ in range(16)]
            for generation in generations:
                with pytest.raises(DeadlineExceeded):
                    texts_of(generation)


CLIENT_WITHOUT_FILE_DESCRIPTORS = """
import resource
import sys
import time
from pathlib import Path

from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.status import EngineState

client = EngineClient(Path(sys.argv[1]), lambda ready: None)
_, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
client.start()
time.sleep(0.3)
assert client.state is EngineState.STARTING
resource.setrlimit(resource.RLIMIT_NOFILE, before)
while client.state is not EngineState.READY:
    time.sleep(0.01)
"""
"""Runs in a separate process: without file descriptors, `poll` fails in every thread, which would stop the test's servers."""


def test_client_reconnects_when_file_descriptors_become_available(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine.sock")
    engine.start()
    script = [sys.executable, "-c", CLIENT_WITHOUT_FILE_DESCRIPTORS, str(tmp_path / "engine.sock")]
    subprocess.run(script, check=True, timeout=60)
    engine.stop()


FAST_ENGINE = """
from gevent import monkey
monkey.patch_all()
import gevent.event, socket, sys
from pathlib import Path
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.messages import Loading, Outputs, SequenceOutput
from lmi_handlers.workers.channel import frame

turns, noted, ended = [0], [], gevent.event.Event()

def others():
    while not ended.is_set():
        turns[0] += 1
        gevent.sleep(0)

def announced(message):
    noted.append(turns[0])
    if len(noted) == 2:
        ended.set()

outputs = frame(Outputs([SequenceOutput(0, 0, TokenOutput(request_id="", token_ids=[1]), 0.0)] * 8))
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    client = EngineClient(Path(sys.argv[1]), announced)
    client.start()
    engine, _ = listener.accept()
    with engine:
        engine.sendall(frame(Loading("begins", 0.0)) + 80 * outputs + frame(Loading("ends", 0.0)))
        gevent.spawn(others)
        ended.wait(60)
        client.close()
print(noted[1] - noted[0])
"""


def test_others_have_turns_while_a_fast_engine_always_has_the_next_message(tmp_path: Path) -> None:
    """In a gevent worker, where reading what has arrived gives nobody a turn: 640 outputs in 80 messages are ten turns."""
    command = [sys.executable, "-c", FAST_ENGINE, str(tmp_path / "engine.sock")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip().isdigit(), run.stderr
    assert int(run.stdout) >= 9
