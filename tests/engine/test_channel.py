"""Framing over real sockets, and the web worker's client against the engine's end of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from waiting import wait_until

from backends.base import ModelFiles
from backends.echo import EchoBackend
from formatters.lmi import JsonFormatter
from lmi_handlers.core.beside import RunBeside, at_once
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    QueueFull,
    RequestFailed,
)
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import BeamSearchParams, GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine import channel as channel_module
from lmi_handlers.engine.admission import RollingBatch
from lmi_handlers.engine.channel import Channel, MessageTooLong, ProtocolError, engine_end, worker_end
from lmi_handlers.engine.client import EngineClient, EngineState, Generation
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import (
    Abort,
    EngineInfo,
    EngineMessage,
    Failed,
    Loading,
    Outputs,
    Ready,
    SequenceOutput,
    Submit,
    WorkerMessage,
)
from lmi_handlers.engine.outbox import Outbox, join_outputs
from lmi_handlers.engine.process import WorkerServer, start_repeating
from lmi_handlers.engine.sender import Sender
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.serving.answer import Answer
from lmi_handlers.serving.beam_generation import BeamGeneration
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

P = ParamSpec("P")
T = TypeVar("T")

ints = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
token_ids = st.lists(st.integers(0, 200_000), max_size=20)
logprobs = st.floats(-100, 0)
pairs = st.lists(st.tuples(ints, logprobs), max_size=3)

sampling_params = st.builds(
    SamplingParams,
    n=st.integers(1, 8),
    max_tokens=st.none() | st.integers(100, 1000),
    min_tokens=st.integers(0, 100),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 1000), max_size=2).map(tuple),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=2),
    logprobs=st.none() | st.integers(0, 20),
    ignore_eos=st.booleans(),
)
submits = st.builds(Submit, ints, texts, st.lists(token_ids, max_size=3), sampling_params)
aborts = st.builds(Abort, ints, st.none() | ints)
worker_messages = submits | aborts

outputs = st.builds(
    TokenOutput,
    request_id=texts,
    token_ids=token_ids,
    logprobs=st.none() | st.lists(logprobs, max_size=3),
    top_logprobs=st.none() | st.lists(pairs, max_size=3),
    prompt_logprobs=st.none() | st.lists(st.none() | logprobs, max_size=3),
    prompt_top_logprobs=st.none() | st.lists(st.none() | pairs, max_size=3),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    error=st.none() | texts,
)
sequence_outputs = st.builds(SequenceOutput, ints, ints, outputs, st.floats(0, 1e6))
infos = st.builds(
    EngineInfo,
    bundle=texts,
    backend=texts,
    model_name=texts,
    max_model_len=ints,
    vocab_size=ints,
    max_logprobs=ints,
    unsupported=st.lists(texts, max_size=3).map(tuple),
    max_prompt_logprobs=st.none() | ints,
)
engine_messages = (
    st.builds(Loading, texts)
    | st.builds(Ready, infos)
    | st.builds(Outputs, st.lists(sequence_outputs, max_size=3))
    | st.builds(Failed, ints, texts, texts)
)

WorkerEnd = Channel[WorkerMessage, EngineMessage]
EngineEnd = Channel[EngineMessage, WorkerMessage]


@contextlib.contextmanager
def accepted(listener: socket.socket) -> Iterator[tuple[socket.socket, EngineEnd]]:
    """The engine's end of the next connection."""
    sock, _ = listener.accept()
    channel = engine_end(sock)
    try:
        yield sock, channel
    finally:
        channel.close()
        channel._reader.close()


@contextlib.contextmanager
def connected() -> Iterator[tuple[WorkerEnd, EngineEnd]]:
    """Both ends of one connection."""
    one, other = socket.socketpair()
    worker, engine = worker_end(one), engine_end(other)
    try:
        yield worker, engine
    finally:
        for end in (worker, engine):
            end.close()
            end._reader.close()


def frames_of(messages: list[WorkerMessage]) -> list[bytes]:
    """Each message's bytes on the wire."""
    frames = []
    for message in messages:
        one, other = socket.socketpair()
        with one, other:
            worker_end(one).send(message)
            one.shutdown(socket.SHUT_WR)
            with other.makefile("rb") as reader:
                frames.append(reader.read())
    return frames


# Framing


@given(st.lists(worker_messages, max_size=5), st.lists(engine_messages, max_size=5))
@settings(max_examples=50)
def test_every_message_arrives_as_it_was_sent(to_engine: list[WorkerMessage], to_worker: list[EngineMessage]) -> None:
    with connected() as (worker, engine):
        for message in to_engine:
            worker.send(message)
        for answer in to_worker:
            engine.send(answer)
        assert list(itertools.islice(engine.receive(), len(to_engine))) == to_engine
        assert list(itertools.islice(worker.receive(), len(to_worker))) == to_worker


def test_every_kind_of_message_is_in_the_protocol() -> None:
    """So that a new one cannot be left out of the round trip above."""
    assert {Submit, Abort} == set(WorkerMessage.__args__)
    assert {Loading, Ready, Outputs, Failed} == set(EngineMessage.__args__)


def test_frame_is_a_length_and_message_pack() -> None:
    [frame] = frames_of([Abort(7, 1)])
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    assert msgspec.msgpack.decode(frame[4:]) == ["Abort", 7, 1]


@given(st.lists(worker_messages, min_size=1, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_messages_survive_any_cutting_of_the_stream(messages: list[WorkerMessage], data: st.DataObject) -> None:
    stream = b"".join(frames_of(messages))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    one, other = socket.socketpair()
    received: queue.SimpleQueue[WorkerMessage | None] = queue.SimpleQueue()

    def read() -> None:
        for message in engine_end(other).receive():
            received.put(message)
        received.put(None)

    with one, other:
        reader = threading.Thread(target=read)
        reader.start()
        for piece in pieces:
            one.sendall(piece)
            time.sleep(0)  # let the reader see this piece alone
        one.shutdown(socket.SHUT_WR)
        reader.join(10)
        assert list(iter(received.get, None)) == messages


@given(st.lists(worker_messages, min_size=1, max_size=4), st.data())
@settings(max_examples=100)
def test_cut_off_stream_yields_what_was_whole_and_ends(messages: list[WorkerMessage], data: st.DataObject) -> None:
    frames = frames_of(messages)
    stream = b"".join(frames)
    length = data.draw(st.integers(0, len(stream) - 1))
    ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    whole = sum(end <= length for end in ends)
    one, other = socket.socketpair()
    with one, other:
        one.sendall(stream[:length])
        one.shutdown(socket.SHUT_WR)
        assert list(engine_end(other).receive()) == messages[:whole]


def test_big_message() -> None:
    message = Submit(1, "big", [list(range(1_000_000))] * 2, SamplingParams())
    with connected() as (worker, engine):
        sender = threading.Thread(target=worker.send, args=(message,))
        sender.start()
        assert next(engine.receive()) == message
        sender.join(10)


def test_parameters_that_nobody_can_have_sent_are_no_message() -> None:
    """What a type's own check refuses is no `DecodeError`."""
    submit = msgspec.to_builtins(Submit(1, "r", [[1]], SamplingParams(temperature=0.5)))
    payload = msgspec.msgpack.encode(submit).replace(msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(-0.5))
    one, other = socket.socketpair()
    with one, other:
        one.sendall(len(payload).to_bytes(4, "big") + payload)
        with pytest.raises(ProtocolError, match="temperature"):
            list(engine_end(other).receive())


@pytest.mark.parametrize("closer", ["this end", "the other end"])
def test_close_ends_a_receive_that_waits(closer: str) -> None:
    with connected() as (worker, engine):
        received: list[WorkerMessage] = []
        reader = threading.Thread(target=lambda: received.extend(engine.receive()))
        reader.start()
        worker.send(Abort(1))
        wait_until(lambda: bool(received))
        (engine if closer == "this end" else worker).close()
        reader.join(10)
        assert not reader.is_alive()
        assert received == [Abort(1)]


def test_send_to_nobody_is_an_error() -> None:
    with connected() as (worker, engine):
        engine.close()
        with pytest.raises(OSError, match="Broken pipe"):
            worker.send(Abort(1))


def test_close_twice_and_receive_after_it() -> None:
    with connected() as (worker, _):
        worker.close()
        worker.close()
        assert list(worker.receive()) == []


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (b"\0\0\0\1\xc1", "cannot be decoded"),
        (b"\0\0\0\6" + msgspec.msgpack.encode(["Stop"]), "cannot be decoded"),
    ],
)
def test_what_is_no_message_is_an_error(sent: bytes, cause: str) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(sent)
        with pytest.raises(ProtocolError, match=cause):
            next(engine_end(other).receive())


def test_message_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_SIZE", 1000)
    with connected() as (worker, engine):
        with pytest.raises(MessageTooLong, match="at most 1000"):
            worker.send(Submit(1, "r", [[0] * 1000], SamplingParams()))
        worker.send(Abort(1))
        assert next(engine.receive()) == Abort(1)


# What waits for an engine that does not read


def big(number: int) -> Submit:
    """A quarter of a megabyte or so."""
    return Submit(number, "r", [[100_000] * 50_000], SamplingParams())


def submit_for_ever(sender: Sender, accepted: list[int]) -> None:
    for number in range(100):
        sender.submit(big(number))
        accepted.append(number)


def test_sends_to_an_engine_that_does_not_read_are_bounded_and_block_nobody() -> None:
    with connected() as (worker, engine):
        sender = Sender(worker, max_bytes=4_000_000)
        started = time.monotonic()
        accepted: list[int] = []
        with pytest.raises(EngineNotReady, match=r"the engine reads nothing: 1[0-9] messages"):
            submit_for_ever(sender, accepted)
        assert time.monotonic() - started < 5
        assert len(accepted) >= 15
        messages = engine.receive()
        assert [message.number for message in itertools.islice(messages, len(accepted))] == accepted
        sender.submit(big(100))
        assert next(messages) == big(100)
        sender.close()


def test_one_long_message_is_sent_whatever_the_bound() -> None:
    with connected() as (worker, engine):
        sender = Sender(worker, max_bytes=1)
        sender.submit(big(1))
        assert next(engine.receive()) == big(1)
        sender.close()


def test_closed_sender_says_so() -> None:
    with connected() as (worker, _):
        sender = Sender(worker)
        sender.close()
        sender.abort(Abort(1))
        with pytest.raises(EngineNotReady, match="gone away"):
            sender.submit(big(1))


class Sending(RuleBasedStateMachine):
    """An engine that reads when it likes gets what was submitted, in order, and nothing of what was given up unsent."""

    @initialize()
    def connect(self) -> None:
        self.stack = contextlib.ExitStack()
        worker, self.engine = self.stack.enter_context(connected())
        self.sender = Sender(worker, max_bytes=1_500_000)
        self.messages = self.engine.receive()
        self.submitted: list[int] = []
        self.given_up: set[int] = set()
        self.aborted: set[tuple[int, int]] = set()
        self.received: list[WorkerMessage] = []
        self.refused = False

    @rule(is_big=st.booleans())
    def submit(self, is_big: bool) -> None:
        number = len(self.submitted) + 1 if not self.submitted else self.submitted[-1] + 1
        try:
            self.sender.submit(big(number) if is_big else Submit(number, "r", [[1]], SamplingParams()))
        except EngineNotReady:
            self.refused = True
        else:
            self.submitted.append(number)

    # Without preconditions and strategies that depend on what was submitted: how much that is, is up to threads.

    def running(self, position: int) -> int | None:
        numbers = sorted(set(self.submitted) - self.given_up)
        return numbers[position % len(numbers)] if numbers else None

    @rule(position=st.integers(0, 99))
    def give_up(self, position: int) -> None:
        if (number := self.running(position)) is not None:
            self.given_up.add(number)
            self.sender.abort(Abort(number))

    @rule(position=st.integers(0, 99))
    def abort_one(self, position: int) -> None:
        if (number := self.running(position)) is not None:
            self.sender.abort(Abort(number, 0))
            self.aborted.add((number, 0))

    @rule()
    def read(self) -> None:
        if len(self.received) < len(set(self.submitted) - self.given_up):
            # There is one more at least: what was not given up has been or will be sent.
            self.received.append(next(self.messages))

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        last = (self.submitted[-1] if self.submitted else 0) + 1
        while True:
            try:
                self.sender.submit(Submit(last, "last", [[1]], SamplingParams()))
                break
            except EngineNotReady:
                self.received.append(next(self.messages))
        for message in self.messages:
            if isinstance(message, Submit) and message.number == last:
                break
            self.received.append(message)
        self.sender.close()
        self.stack.close()
        numbers = [message.number for message in self.received if isinstance(message, Submit)]
        assert numbers == sorted(numbers)
        assert set(self.submitted) - self.given_up <= set(numbers) <= set(self.submitted)
        ends = {message.number for message in self.received if isinstance(message, Abort) and message.index is None}
        assert ends == self.given_up & set(numbers), (
            "a whole request is aborted exactly where the engine has heard of it"
        )
        for position, message in enumerate(self.received):
            if isinstance(message, Abort) and message.index is None:
                assert message.number in {item.number for item in self.received[:position] if isinstance(item, Submit)}


Sending.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSending = Sending.TestCase


# What a slow worker is behind


@st.composite
def histories(draw: st.DrawFn) -> list[EngineMessage]:
    """Messages as an engine may queue them: steps of up to three sequences, some of which end, with failures between."""
    messages: list[EngineMessage] = []
    running = {(1, 0), (1, 1), (2, 0)}
    begun: set[tuple[int, int]] = set()
    with_logprobs = draw(st.booleans())
    for _ in range(draw(st.integers(0, 8))):
        step = []
        for number, index in draw(st.sets(st.sampled_from(sorted(running)))) if running else ():
            tokens = draw(st.lists(st.integers(0, 9), max_size=2))
            finish_reason = draw(st.sampled_from([None, FinishReason.LENGTH, FinishReason.ERROR]))
            failed = finish_reason is FinishReason.ERROR
            with_prompt = with_logprobs and (number, index) not in begun
            begun.add((number, index))
            output = TokenOutput(
                request_id=f"{number}-{index}",
                token_ids=tokens,
                logprobs=[-float(token) for token in tokens] if with_logprobs else None,
                top_logprobs=[[(token, -1.0)] for token in tokens] if with_logprobs else None,
                prompt_logprobs=[None, -2.0] if with_prompt else None,
                prompt_top_logprobs=[None, [(number, -1.0)]] if with_prompt else None,
                finish_reason=finish_reason,
                error="x" if failed else None,
                invalid_request=failed and draw(st.booleans()),
            )
            step.append(SequenceOutput(number, index, output, 0.5))
            if finish_reason is not None:
                running.discard((number, index))
        if step:
            messages.append(Outputs(step))
        if draw(st.booleans()):
            messages.append(Failed(draw(st.integers(3, 9)), "RequestFailed", "x"))
    return messages


def story(messages: list[EngineMessage], number: int, index: int) -> list[object]:
    """What one sequence is told: of its prompt, its tokens with their logprobs one by one, then its end."""
    told: list[object] = []
    for item in (item for message in messages if isinstance(message, Outputs) for item in message.outputs):
        if (item.number, item.index) == (number, index):
            output = item.output
            if output.prompt_logprobs is not None:
                told.append((output.prompt_logprobs, output.prompt_top_logprobs))
            nothing = [None] * len(output.token_ids)
            told += zip(output.token_ids, output.logprobs or nothing, output.top_logprobs or nothing, strict=True)
            if output.finish_reason is not None:
                told.append((output.finish_reason, output.error, output.invalid_request))
    return told


@given(histories())
def test_steps_that_are_joined_say_the_same(messages: list[EngineMessage]) -> None:
    outbox = Outbox()
    for message in messages:
        outbox.put(message)
    outbox.put(None)
    *taken, end = outbox.take()
    assert end is None
    joined = [message for message in taken if message is not None]
    for sequence in ((1, 0), (1, 1), (2, 0)):
        assert story(joined, *sequence) == story(messages, *sequence)
    kinds = [type(message) for message in messages]
    runs = [kind for position, kind in enumerate(kinds) if kind is Failed or kind not in kinds[position - 1 : position]]
    assert [type(message) for message in joined] == runs
    for message in joined:
        if isinstance(message, Outputs):
            assert len({(item.number, item.index) for item in message.outputs}) == len(message.outputs)


# The client, a real engine loop behind it


class Engine:
    """An engine in threads of this process: what the engine process runs, but for loading."""

    info = EngineInfo(
        bundle="", backend="echo", model_name="m", max_model_len=4096, vocab_size=257, max_logprobs=20, unsupported=()
    )

    def __init__(self, path: Path) -> None:
        self._inbox: Inbox = queue.SimpleQueue()
        files = ModelFiles(path=None, eos_token_ids=(256,), vocab_size=257)
        self.backend = EchoBackend(
            files, max_model_len=4096, tokens_per_second=math.inf, faults=True, sleep_seconds=0.1
        )
        self._loop = EngineLoop(self.backend, RollingBatch(2), 2, self._inbox)
        self.server = WorkerServer(path, self._inbox)
        self._thread = threading.Thread(target=self._loop.run)

    def start(self) -> None:
        self._thread.start()
        self.server.announce(Ready(self.info))

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(10)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, EngineClient]]:
    path = tmp_path_factory.mktemp("engine") / "engine.sock"
    infos: list[EngineInfo] = []
    client = EngineClient(path, infos.append)
    client.start()
    assert client.state is EngineState.STARTING
    with pytest.raises(EngineNotReady, match="starting"):
        submit(client, b"hello")
    engine = Engine(path)
    engine.server.announce(Loading("loading weights"))
    wait_until(lambda: client.phase == "loading weights")
    with pytest.raises(EngineNotReady, match="loading weights"):
        submit(client, b"hello")
    engine.start()
    wait_until(lambda: client.state is EngineState.READY)
    assert infos == [Engine.info]
    yield engine, client
    engine.stop()


def submit(
    client: EngineClient,
    *prompts: bytes,
    timeout: float = 60,
    connected: Callable[[], bool] = lambda: True,
    **params: Any,
) -> Generation:
    return client.submit(
        [list(prompt) for prompt in prompts],
        SamplingParams(**params),
        request_id="r",
        timeout=timeout,
        connected=connected,
    )


def texts_of(generation: Generation, count: int = 1) -> list[bytes]:
    """The bytes of each sequence, once the generation has ended."""
    answers = [b""] * count
    with generation:
        for batch in generation:
            for item in batch:
                answers[item.index] += bytes(token_id for token_id in item.output.token_ids if token_id < 256)
    return answers


def engine_is_free(client: EngineClient) -> None:
    """Both of the engine's places can be had at once, and no request is left over."""
    assert texts_of(submit(client, b"one", b"two"), 2) == [b"one", b"two"]


Pair = tuple[Engine, EngineClient]


def test_client_gets_every_sequence(engine: Pair) -> None:
    _, client = engine
    assert texts_of(submit(client, b"ab", b"cde", n=2), 4) == [b"ab", b"ab", b"cde", b"cde"]


def test_every_beam_tells_of_its_prompt_what_the_first_step_did(engine: Pair, tmp_path: Path) -> None:
    _, client = engine
    params = SamplingParams(n=2, max_tokens=3, temperature=0.0, prompt_logprobs=2)
    generation = BeamGeneration(
        client,
        [list(b"ab"), list(b"x")],
        GenerationRequest(request_id="r", prompts=("ab", "x"), sampling_params=params),
        BeamSearchParams(num_beams=2),
        info=Engine.info,
        tokenizer=Tokenizer(tmp_path, build_byte_bundle(tmp_path)),
        timeout=60,
        connected=lambda: True,
    )
    with generation:
        [outputs] = generation
    assert [(item.output.prompt_logprobs, item.output.prompt_top_logprobs) for item in outputs] == [
        *[([None, -0.5], [None, [(ord("b"), -0.5), (ord("c"), -1.5)]])] * 2,
        *[([None], [None])] * 2,
    ]


def test_client_raises_the_engines_errors(engine: Pair) -> None:
    _, client = engine
    with pytest.raises(RequestFailed, match="as the prompt asked"):
        texts_of(submit(client, b"RAISE@2"))
    with pytest.raises(InvalidRequest, match="5000 tokens"):
        texts_of(submit(client, b"x" * 5000))
    engine_is_free(client)


def test_what_came_before_an_error_is_delivered(engine: Pair) -> None:
    _, client = engine
    batches: list[list[SequenceOutput]] = []
    with pytest.raises(RequestFailed):
        batches.extend(submit(client, b"RAISE@6"))
    assert b"".join(bytes(item.output.token_ids) for batch in batches for item in batch) == b"RAISE"


def test_leaving_a_generation_frees_its_place(engine: Pair) -> None:
    _, client = engine
    for _ in range(5):
        with submit(client, b"x HANG@3", b"y HANG@3") as generation:
            next(iter(generation))
    engine_is_free(client)


def test_aborting_each_sequence_ends_the_generation(engine: Pair) -> None:
    _, client = engine
    with submit(client, b"a", b"b", ignore_eos=True) as generation:
        for batch in generation:
            for item in batch:
                generation.abort(item.index)
    engine_is_free(client)


def test_deadline_and_departed_client_end_a_generation(engine: Pair) -> None:
    _, client = engine
    with pytest.raises(DeadlineExceeded):
        texts_of(submit(client, b"x HANG@1", timeout=0.1))
    with pytest.raises(ClientDisconnected):
        texts_of(submit(client, b"x HANG@1", connected=lambda: False))
    engine_is_free(client)


def test_a_generation_that_finished_in_time_may_be_read_late(engine: Pair) -> None:
    """As those of a batch are, which wait for the records before them."""
    _, client = engine
    generation = submit(client, b"abc", timeout=0.5)
    wait_until(lambda: generation.failure is not None)
    assert texts_of(generation) == [b"abc"]


def answer_of(
    engine: Pair, tmp_path: Path, prompt: bytes, *, n: int = 1, run_beside: RunBeside = at_once, **options: Any
) -> Answer:
    _, client = engine
    tokenizer = Tokenizer(tmp_path, build_byte_bundle(tmp_path))
    params = SamplingParams(n=n)
    request = GenerationRequest(request_id="r", prompts=(prompt.decode(),), sampling_params=params)
    return Answer(
        submit(client, prompt, n=n, **options),
        JsonFormatter(request, (len(prompt),)),
        [SequenceText(TextRules(tokenizer, params), list(prompt), index=index) for index in range(n)],
        Usage(started=time.monotonic()),
        RequestMetrics(tmp_path, "m"),
        str,
        run_beside,
    )


@pytest.mark.parametrize(("n", "beside"), [(2, False), (20, True)])
def test_a_long_document_is_written_beside_the_event_loop(n: int, beside: bool, engine: Pair, tmp_path: Path) -> None:
    """However short each of its sequences is."""
    ran: list[str] = []

    def run_beside(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        ran.append(function.__name__)
        return function(*args, **kwargs)

    document = json.loads(b"".join(answer_of(engine, tmp_path, b"x" * 100, n=n, run_beside=run_beside)))
    assert len(document["details"]["best_of_sequences"]) == n - 1
    assert ("finish" in ran) == beside


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        (b"RAISE@2", {}, RequestFailed),
        (b"x" * 5000, {}, InvalidRequest),
        (b"x HANG@1", {"timeout": 0.1}, DeadlineExceeded),
        (b"x HANG@1", {"connected": lambda: False}, ClientDisconnected),
    ],
)
def test_a_failed_answer_keeps_nothing_of_its_request(
    prompt: bytes, options: dict[str, Any], error: type[Exception], engine: Pair, tmp_path: Path
) -> None:
    """Without the garbage collector, which a web worker rarely runs."""
    answer = answer_of(engine, tmp_path, prompt, **options)
    kept = weakref.ref(answer)
    gc.disable()
    try:
        with pytest.raises(error):
            b"".join(answer)
        answer.close()
        del answer
        assert kept() is None
    finally:
        gc.enable()


def test_generation_that_nobody_reads_ends_once_and_frees_its_places(
    engine: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, client = engine
    monkeypatch.setattr(running.backend, "_tokens_per_second", 1000)  # else the engine's end joins most of them
    prompts = b"abc HANG@1300", b"def HANG@1300"
    generation = submit(client, *prompts, ignore_eos=True, max_tokens=None)
    sequences = running.backend._sequences
    wait_until(lambda: [sequence.produced for sequence in list(sequences.values())] == [1299] * 2, timeout=60)
    generation.deadline = time.monotonic() + 0.3  # until then the last ones arrive
    wait_until(lambda: generation.failure is not None)
    engine_is_free(client)
    failure = generation.failure
    time.sleep(0.5)  # the watch has looked again since
    assert generation.failure is failure
    batches: list[list[SequenceOutput]] = []
    with pytest.raises(DeadlineExceeded):
        batches.extend(generation)
    assert generation.failure is None, "it would hold the traceback, and that the generation"
    for index, prompt in enumerate(prompts):
        items = [item for batch in batches for item in batch if item.index == index]
        answer = bytes(token_id for item in items for token_id in item.output.token_ids)
        assert answer == (prompt * len(answer))[: len(answer)]
        assert len(answer) > 1000, "else nothing had to be joined"
        assert len(items) < 256 + 2 * 256 + len(answer) / 100


def test_full_queue_is_refused_to_the_last_one_only(engine: Pair) -> None:
    _, client = engine
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(submit(client, b"x HANG@3")) for _ in range(2)]
        for generation in running:
            next(iter(generation))
        for _ in range(2):
            stack.enter_context(submit(client, b"waiting"))
        with pytest.raises(QueueFull, match="job_queue_size=2"):
            texts_of(submit(client, b"one too many"))
    engine_is_free(client)


def test_engine_that_hangs_up_fails_its_requests_and_is_found_again(engine: Pair) -> None:
    _, client = engine
    generation = submit(client, b"x HANG@3")
    next(iter(generation))
    assert client._sender is not None
    client._sender._channel._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that has died
    with pytest.raises(EngineDead):
        texts_of(generation)
    wait_until(lambda: client.state is EngineState.READY)
    engine_is_free(client)


def test_request_that_is_too_long_to_be_sent_is_the_clients_mistake(
    engine: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = engine
    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "MAX_MESSAGE_SIZE", 3000)
        with pytest.raises(InvalidRequest, match="too long for the engine"):
            submit(client, b"x" * 4000)
    engine_is_free(client)


def test_output_that_is_too_long_to_be_sent_fails_its_request(engine: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = engine
    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "MAX_MESSAGE_SIZE", 20_000)
        other = submit(client, b"ab" * 500)
        with pytest.raises(RequestFailed, match="too long to be sent"):
            texts_of(submit(client, b"x" * 2000, prompt_logprobs=5, ignore_eos=True))
        assert texts_of(other) == [b"ab" * 500]
    engine_is_free(client)


def test_worker_that_sends_nonsense_is_disconnected_and_no_other(engine: Pair) -> None:
    running, client = engine
    with socket.socket(socket.AF_UNIX) as sock, contextlib.ExitStack() as stack:
        sock.connect(str(client._socket_path))
        channel = worker_end(sock)
        stack.callback(channel._reader.close)
        messages = channel.receive()
        assert next(messages) == Ready(running.info)
        channel.send(Submit(1, "r", [list(b"x HANG@2")], SamplingParams()))
        assert isinstance(next(messages), Outputs)
        sock.sendall(b"\0\0\0\1\xc1")
        assert list(messages) == []
    engine_is_free(client)


def test_worker_that_cannot_take_in_the_model_says_so_and_tries_again(
    engine: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    running, other = engine
    failures = [FileNotFoundError("no bundle"), ValueError("not yet"), None]
    seen: list[str] = []

    def on_ready(info: EngineInfo) -> None:
        seen.append(client.phase)
        if failures and (failure := failures.pop(0)) is not None:
            raise failure

    client = EngineClient(other._socket_path, on_ready)
    client.start()
    wait_until(lambda: client.state is EngineState.READY)
    assert len(seen) == 3
    assert seen[1].endswith("is tried again: FileNotFoundError: no bundle")
    assert seen[2].endswith("is tried again: ValueError: not yet")
    assert "no bundle" in caplog.text
    assert texts_of(submit(client, b"hello")) == [b"hello"]
    assert running.info is not None


def test_engine_that_talks_nonsense_fails_the_requests_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = EngineClient(path, lambda info: None)
        client.start()
        for nonsense, cause in ((b"\0\0\0\1\xc1", "cannot be decoded"), (b"\xff" * 4, "4294967295 bytes")):
            with accepted(listener) as (sock, channel):
                channel.send(Ready(Engine.info))
                wait_until(lambda: client.state is EngineState.READY)
                generation = submit(client, b"hello")
                assert isinstance(next(channel.receive()), Submit)
                sock.sendall(nonsense)
                with pytest.raises(EngineDead, match="the connection to the engine was dropped"):
                    texts_of(generation)
                wait_until(lambda: client.state is EngineState.STARTING)
                assert cause in client.phase
                assert cause in caplog.text
        with accepted(listener) as (_, channel):
            channel.send(Ready(Engine.info))
            wait_until(lambda: client.state is EngineState.READY)


def test_requests_end_at_their_deadline_where_the_engine_reads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = EngineClient(path, lambda info: None)
        client.start()
        with accepted(listener) as (_, channel):
            channel.send(Ready(Engine.info))
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

from lmi_handlers.engine.client import EngineClient, EngineState

client = EngineClient(Path(sys.argv[1]), lambda info: None)
_, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
client.start()
time.sleep(0.3)
assert client.state is EngineState.STARTING
resource.setrlimit(resource.RLIMIT_NOFILE, before)
while client.state is not EngineState.READY:
    time.sleep(0.01)
"""
"""It runs in a process of its own: with such a limit `poll` fails in every thread, and ends the test's servers."""


def test_client_without_file_descriptors_connects_once_there_are_some(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine.sock")
    engine.start()
    script = [sys.executable, "-c", CLIENT_WITHOUT_FILE_DESCRIPTORS, str(tmp_path / "engine.sock")]
    subprocess.run(script, check=True, timeout=60)
    engine.stop()


def test_workers_that_read_nothing_delay_the_end_once_and_not_one_by_one(tmp_path: Path) -> None:
    server = WorkerServer(tmp_path / "engine.sock", queue.SimpleQueue())
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "engine.sock"))
        wait_until(lambda: len(server._connections) == 12)
        server.announce(Loading("x" * 10_000_000))
        wait_until(lambda: all(connection.sending_since for connection in server._connections))
        started = time.monotonic()
        server.flush()
        assert time.monotonic() - started < 8, "one second for each"


def test_thread_goes_on_whatever_it_meets(caplog: pytest.LogCaptureFixture) -> None:
    calls = itertools.count()

    def action() -> None:
        if next(calls) < 3:
            raise ValueError("not yet")
        reached.set()

    reached = threading.Event()
    start_repeating(0.01, action)
    assert reached.wait(10)
    assert caplog.text.count("Traceback") == 1


def test_worker_that_reads_nothing_loses_its_places(engine: Pair) -> None:
    running, client = engine
    with socket.socket(socket.AF_UNIX) as sock, contextlib.ExitStack() as stack:
        sock.connect(str(client._socket_path))
        channel = worker_end(sock)
        stack.callback(channel._reader.close)
        params = SamplingParams(ignore_eos=True, max_tokens=3000, logprobs=20)
        channel.send(Submit(1, "r", [list(b"ab")] * 2, params))  # more than a socket takes, and both places
        wait_until(lambda: any(connection.sending_since for connection in running.server._connections))
        running.server.hang_up_on_stuck(60)
        before = len(running.server._connections)

        def is_disconnected() -> bool:
            running.server.hang_up_on_stuck(0.4)
            return len(running.server._connections) < before

        wait_until(is_disconnected, timeout=60)
        assert len([message for message in channel.receive() if isinstance(message, Outputs)]) > 0
    engine_is_free(client)


def test_workers_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    process = psutil.Process()
    inbox: Inbox = queue.SimpleQueue()
    server = WorkerServer(tmp_path / "engine.sock", inbox)
    before = 0, 0
    for number in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "engine.sock"))
            assert next(worker_end(sock).receive()) == Loading("starting")
        assert isinstance(inbox.get(timeout=10)[1], Disconnected)
        if number == 0:
            before = process.num_fds() + 1, threading.active_count() + 1  # there may still be the first one's
    wait_until(lambda: threading.active_count() <= before[1])
    wait_until(lambda: process.num_fds() <= before[0])
    server.announce(Loading("still here"))


def test_what_a_prompt_has_become_is_not_lost_where_outputs_are_joined() -> None:
    steps = [
        Outputs([SequenceOutput(1, 0, TokenOutput(request_id="r", token_ids=[token], num_prompt_tokens=39), 0.0)])
        for token in (5, 6)
    ]
    (joined,) = join_outputs(steps).outputs
    assert (joined.output.token_ids, joined.output.num_prompt_tokens) == ([5, 6], 39)
