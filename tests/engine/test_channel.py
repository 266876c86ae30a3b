"""Messages between web workers and the engine, over real sockets."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time

import msgspec
import pytest
from channels import connected
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import encoded
from waiting import wait_until

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.meter import Paid
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.messages import (
    Abort,
    AdapterChanged,
    EngineMessage,
    Failed,
    Joined,
    LoadAdapter,
    Loading,
    Outputs,
    Pays,
    Ready,
    SequenceOutput,
    Submit,
    Sync,
    Synced,
    UnloadAdapter,
    WorkerMessage,
    engine_end,
    worker_end,
)
from lmi_handlers.workers import channel as channel_module
from lmi_handlers.workers.channel import MessageTooLong, ProtocolError

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
prompts = st.builds(EncodedPrompt, token_ids, st.none() | texts)
keys = st.none() | st.binary(max_size=32)
submits = st.builds(Submit, ints, texts, st.lists(prompts, max_size=3), sampling_params, join_key=keys)
aborts = st.builds(Abort, ints, st.none() | ints, st.booleans())
adapter_changes = st.builds(LoadAdapter, ints, texts, texts, ints, st.booleans(), st.booleans()) | st.builds(
    UnloadAdapter, ints, texts, st.none() | ints
)
worker_messages = submits | aborts | adapter_changes | st.builds(Synced, ints)

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
capabilities = st.builds(
    Capabilities,
    backend=texts,
    max_model_len=ints,
    vocab_size=ints,
    max_logprobs=ints,
    unsupported=st.lists(texts, max_size=3).map(tuple),
    max_prompt_logprobs=st.none() | ints,
    max_input_len=st.none() | ints,
)
engine_messages = (
    st.builds(Loading, texts, st.floats(0, 1e9))
    | st.builds(Ready, texts, capabilities)
    | st.builds(Joined, ints)
    | st.builds(Pays, ints, st.builds(Paid, ints, st.floats(0, 1e9)))
    | st.builds(Outputs, st.lists(sequence_outputs, max_size=3))
    | st.builds(Failed, ints, texts, texts)
    | st.builds(AdapterChanged, ints)
    | st.builds(Sync, ints)
)


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


@given(st.lists(worker_messages, max_size=5), st.lists(engine_messages, max_size=5))
@settings(max_examples=50)
def test_messages_arrive_unchanged(to_engine: list[WorkerMessage], to_worker: list[EngineMessage]) -> None:
    with connected() as (worker, engine):
        for message in to_engine:
            worker.send(message)
        for answer in to_worker:
            engine.send(answer)
        assert list(itertools.islice(engine.receive(), len(to_engine))) == to_engine
        assert list(itertools.islice(worker.receive(), len(to_worker))) == to_worker


def test_strategies_cover_every_message_type() -> None:
    """A new message type must be added to the round trip above."""
    assert {Submit, Abort, LoadAdapter, UnloadAdapter, Synced} == set(WorkerMessage.__args__)
    assert {Loading, Ready, Joined, Pays, Outputs, Failed, AdapterChanged, Sync} == set(EngineMessage.__args__)


def test_frame_is_a_length_followed_by_msgpack() -> None:
    [frame] = frames_of([Abort(7, 1)])
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    assert msgspec.msgpack.decode(frame[4:]) == ["Abort", 7, 1, False]


@given(st.lists(worker_messages, min_size=1, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_messages_survive_any_fragmentation(messages: list[WorkerMessage], data: st.DataObject) -> None:
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
            time.sleep(0)  # let the reader read this piece alone
        one.shutdown(socket.SHUT_WR)
        reader.join(10)
        assert list(iter(received.get, None)) == messages


@given(st.lists(worker_messages, min_size=1, max_size=4), st.data())
@settings(max_examples=100)
def test_truncated_stream_yields_its_complete_messages(messages: list[WorkerMessage], data: st.DataObject) -> None:
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


def test_message_larger_than_the_socket_buffer() -> None:
    message = Submit(1, "big", encoded(range(1_000_000)) * 2, SamplingParams())
    with connected() as (worker, engine):
        sender = threading.Thread(target=worker.send, args=(message,))
        sender.start()
        assert next(engine.receive()) == message
        sender.join(10)


def test_invalid_parameters_are_a_protocol_error() -> None:
    """A check in the type itself does not raise `DecodeError`."""
    submit = msgspec.to_builtins(Submit(1, "r", encoded([1]), SamplingParams(temperature=0.5)))
    payload = msgspec.msgpack.encode(submit).replace(msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(-0.5))
    one, other = socket.socketpair()
    with one, other:
        one.sendall(len(payload).to_bytes(4, "big") + payload)
        with pytest.raises(ProtocolError, match="temperature"):
            list(engine_end(other).receive())


@pytest.mark.parametrize("closer", ["this end", "the other end"])
def test_close_ends_a_waiting_receive(closer: str) -> None:
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


def test_send_to_a_closed_connection_fails() -> None:
    with connected() as (worker, engine):
        engine.close()
        with pytest.raises(OSError, match="Broken pipe"):
            worker.send(Abort(1))


def test_channel_can_be_closed_twice_and_then_receives_nothing() -> None:
    with connected() as (worker, _):
        worker.close()
        worker.close()
        assert list(worker.receive()) == []


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"\xff\xff\xff\xff", "bytes, got 4294967295"),
        (b"\0\0\0\1\xc1", "cannot be decoded"),
        (b"\0\0\0\6" + msgspec.msgpack.encode(["Stop"]), "cannot be decoded"),
    ],
)
def test_invalid_frame_is_a_protocol_error(sent: bytes, cause: str) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(sent)
        with pytest.raises(ProtocolError, match=cause):
            next(engine_end(other).receive())


def test_message_over_the_size_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_SIZE", 1000)
    with connected() as (worker, engine):
        with pytest.raises(MessageTooLong, match="at most 1000"):
            worker.send(Submit(1, "r", encoded([0] * 1000), SamplingParams()))
        worker.send(Abort(1))
        assert next(engine.receive()) == Abort(1)
