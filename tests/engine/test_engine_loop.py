"""The engine loop on the echo backend: whatever web workers do, every submit ends once and nothing leaks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backends.base import ModelFiles
from backends.echo import EchoBackend
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import Abort, EngineMessage, Failed, Outputs, SequenceOutput, Submit

EOS = 256
MAX_MODEL_LEN = 32
TOO_LONG = b"x" * MAX_MODEL_LEN
BATCH = 3
QUEUE = 2


class WatchedEcho(EchoBackend):
    """The echo backend, keeping book of who runs. `joined` has each sequence in the order in which they came."""

    def __init__(self) -> None:
        files = ModelFiles(path=None, eos_token_ids=(EOS,), vocab_size=257)
        super().__init__(
            files, max_model_len=MAX_MODEL_LEN, tokens_per_second=float("inf"), faults=True, sleep_seconds=0
        )
        self.running: dict[str, int] = {}
        self.joined: list[str] = []
        self.most_running = 0
        self.oldest_at_join = 0
        """Steps that the oldest running sequence had taken when another one joined it, at most."""

    def add_request(self, request: TokenRequest) -> None:
        self.joined.append(request.request_id)
        super().add_request(request)
        self.oldest_at_join = max([self.oldest_at_join, *self.running.values()])
        self.running[request.request_id] = 0
        self.most_running = max(self.most_running, len(self.running))

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.running.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        self.running = {request_id: steps + 1 for request_id, steps in self.running.items()}
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        return outputs


class RecordingWorker:
    """The web worker's end: keeps what it is sent, with the number of sequences that ran at that moment."""

    def __init__(self, backend: WatchedEcho) -> None:
        self.received: list[tuple[EngineMessage, int]] = []
        self._backend = backend

    def send(self, message: EngineMessage) -> None:
        self.received.append((message, len(self._backend.running)))

    @property
    def messages(self) -> list[EngineMessage]:
        return [message for message, _ in self.received]


def echoed(prompt: bytes, params: SamplingParams) -> tuple[list[int], FinishReason]:
    """What the echo backend answers when nothing goes wrong."""
    room = min(params.max_tokens or MAX_MODEL_LEN, MAX_MODEL_LEN - len(prompt))
    tokens = [*(prompt * MAX_MODEL_LEN)[:room]] if params.ignore_eos else [*prompt, EOS][:room]
    return tokens, FinishReason.EOS_TOKEN if EOS in tokens else FinishReason.LENGTH


def fault_of(prompt: bytes, params: SamplingParams) -> str | None:
    """The error class that a sequence of this prompt ends with, None for none."""
    if len(prompt) >= MAX_MODEL_LEN:
        return "InvalidRequest"
    name, _, at = prompt.partition(b"@")
    if name == b"RAISE" and len(echoed(prompt, params)[0]) >= int(at):
        return "RequestFailed"
    return None


class Tracked:
    """A submit, what must come of it, and what has come so far."""

    def __init__(self, worker: RecordingWorker, submit: Submit) -> None:
        self.worker = worker
        self.submit = submit
        self.handled = False
        self.key: int | None = None
        n, params = submit.sampling_params.n, submit.sampling_params
        self.prompts = [bytes(prompt) for prompt in submit.prompts for _ in range(n)]
        self.expected = [echoed(prompt, params) for prompt in self.prompts]
        self.faults = [fault_of(prompt, params) for prompt in self.prompts]
        self.tokens: list[list[int]] = [[] for _ in self.prompts]
        self.finished: dict[int, FinishReason] = {}
        self.aborted: set[int] = set()
        self.gone = False
        self.gone_handled = False
        self.failure: str | None = None

    @property
    def ended(self) -> bool:
        """Nothing may come any more."""
        return self.gone or self.failure is not None or len(self.finished.keys() | self.aborted) == len(self.prompts)

    def take_output(self, item: SequenceOutput) -> None:
        index, output = item.index, item.output
        assert not self.gone, "delivered after the request was aborted"
        assert self.failure is None, "delivered after the request had failed"
        assert index not in self.aborted, "delivered after the sequence was aborted"
        assert index not in self.finished, "delivered after the sequence had finished"
        assert item.queue_time >= 0
        self.tokens[index] += output.token_ids
        assert self.tokens[index] == self.expected[index][0][: len(self.tokens[index])]
        if output.finish_reason is not None:
            self.finished[index] = output.finish_reason

    def take_failure(self, message: Failed) -> None:
        assert self.failure is None, "failed twice"
        assert not self.gone_handled, "failed after it was aborted"
        self.failure = message.error
        if message.error != "QueueFull":
            assert message.error in self.faults

    def check_end(self) -> None:
        """At rest: exactly one terminal, and the right one."""
        if self.gone:
            return
        running = [index for index in range(len(self.prompts)) if index not in self.aborted]
        if self.failure is None:
            assert not any(self.faults[index] for index in running), "it should have failed"
            for index in running:
                assert (self.tokens[index], self.finished[index]) == self.expected[index]


class Workers(RuleBasedStateMachine):
    """Three web workers that submit, abort and go away as they like."""

    admission: Callable[[], Admission]
    dynamic: bool
    batch = BATCH

    @initialize()
    def start(self) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self.backend = WatchedEcho()
        self.loop = EngineLoop(self.backend, type(self).admission(), QUEUE, self.inbox)
        self.workers = [RecordingWorker(self.backend) for _ in range(3)]
        self.requests: dict[tuple[RecordingWorker, int], Tracked] = {}
        self.accepted = 0

    # What workers do

    @rule(
        worker=st.integers(0, 2),
        prompts=st.lists(
            st.sampled_from([b"a", b"bc", b"defghi", b"RAISE@1", b"RAISE@3", TOO_LONG[1:], TOO_LONG]),
            min_size=1,
            max_size=3,
        ),
        n=st.integers(1, 2),
        max_tokens=st.sampled_from([1, 2, 3, 5, None]),
        ignore_eos=st.booleans(),
    )
    def submit(self, worker: int, prompts: list[bytes], n: int, max_tokens: int | None, ignore_eos: bool) -> None:
        params = SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=ignore_eos)
        number = len(self.requests) + 1
        submit = Submit(number, f"r{number}", [list(prompt) for prompt in prompts], params)
        self.requests[self.workers[worker], number] = Tracked(self.workers[worker], submit)
        self.inbox.put((self.workers[worker], submit))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.requests.values())))
        self.inbox.put((request.worker, Abort(request.submit.number)))
        request.gone = True

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort_one(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.requests.values())))
        index = data.draw(st.integers(0, len(request.prompts) - 1))
        self.inbox.put((request.worker, Abort(request.submit.number, index)))
        request.aborted.add(index)

    @rule(worker=st.integers(0, 2))
    def abort_what_never_was(self, worker: int) -> None:
        self.inbox.put((self.workers[worker], Abort(10_000)))
        self.inbox.put((self.workers[worker], Abort(10_000, 1)))

    @rule(worker=st.integers(0, 2))
    def disconnect(self, worker: int) -> None:
        gone = self.workers[worker]
        self.inbox.put((gone, Disconnected()))
        for request in self.requests.values():
            if request.worker is gone:
                request.gone = True
        self.workers[worker] = RecordingWorker(self.backend)

    # What the engine does

    @rule()
    def turn(self) -> None:
        if not self.has_work():  # no precondition: where a delay plays a part, examples would not replay
            return
        workers = {worker for worker, _ in self.requests}
        before = {worker: len(worker.received) for worker in workers}
        self.loop.turn()
        for worker in workers:
            received = worker.received[before[worker] :]
            assert sum(isinstance(message, Outputs) for message, _ in received) <= 1
            for message, running in received:
                self.take(worker, message, running)
        for request in self.requests.values():
            request.gone_handled = request.gone  # until then it may have failed on its way into the engine
            if not request.handled:
                request.handled = True
                if request.failure != "QueueFull":
                    self.accepted += 1
                    request.key = self.accepted

    def take(self, worker: RecordingWorker, message: EngineMessage, running: int) -> None:
        if isinstance(message, Outputs):
            assert message.outputs
            for item in message.outputs:
                self.requests[worker, item.number].take_output(item)
        else:
            assert isinstance(message, Failed)
            self.requests[worker, message.number].take_failure(message)
            if message.error == "QueueFull" and not self.dynamic:
                assert running == self.batch, "refused while places were free"

    def has_work(self) -> bool:
        return not self.inbox.empty() or any(not request.ended for request in self.requests.values())

    @invariant()
    def batch_is_bounded(self) -> None:
        assert self.backend.most_running <= self.batch

    @invariant()
    def first_come_first_served(self) -> None:
        order = [tuple(map(int, request_id.split("-"))) for request_id in self.backend.joined]
        if self.dynamic:
            assert order == sorted(order)
        first_turns = list(dict.fromkeys(key for key, _ in order))
        assert first_turns == sorted(first_turns)
        for key in first_turns:
            indices = [index for other, index in order if other == key]
            assert indices == sorted(indices)

    @invariant()
    def static_batch_takes_nobody_on_the_way(self) -> None:
        if self.dynamic:
            assert self.backend.oldest_at_join == 0

    @invariant()
    def queue_is_bounded(self) -> None:
        joined = set(self.backend.joined)
        waiting = [
            request
            for request in self.requests.values()
            if request.key is not None
            and not request.ended
            and any(
                f"{request.key}-{index}" not in joined
                for index in range(len(request.prompts))
                if index not in request.aborted
            )
        ]
        assert len(waiting) <= QUEUE

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for _ in range((len(self.requests) + 1) * 6 * MAX_MODEL_LEN):
            if not self.has_work():
                break
            self.turn()
        assert not self.has_work(), "a request never ended"
        assert not self.backend.running, "a sequence runs for nobody"
        for request in self.requests.values():
            request.check_end()
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        """One more request has the engine for itself."""
        worker = RecordingWorker(self.backend)
        self.inbox.put((worker, Submit(1, "last", [[97]], SamplingParams(max_tokens=1))))
        for _ in range(2):
            if not worker.messages:
                self.loop.turn()
        [message] = worker.messages
        assert isinstance(message, Outputs)
        assert message.outputs[0].output.token_ids == [97]
        assert self.backend.most_running <= self.batch


class RollingWorkers(Workers):
    """Under continuous batching."""

    admission = staticmethod(lambda: RollingBatch(BATCH))
    dynamic = False


class DynamicWorkers(Workers):
    """Under dynamic batching without a delay: whatever waits is a batch."""

    admission = staticmethod(lambda: DynamicBatch(BATCH, 0.0))
    dynamic = True


class DelayedWorkers(Workers):
    """Under dynamic batching that collects its batch for a moment."""

    admission = staticmethod(lambda: DynamicBatch(BATCH, 0.002))
    dynamic = True


SCHEDULES = settings(max_examples=60, stateful_step_count=30, deadline=None)
RollingWorkers.TestCase.settings = SCHEDULES
DynamicWorkers.TestCase.settings = SCHEDULES
DelayedWorkers.TestCase.settings = SCHEDULES
TestRollingBatch = RollingWorkers.TestCase
TestDynamicBatch = DynamicWorkers.TestCase
TestDelayedBatch = DelayedWorkers.TestCase


# One thing at a time


class Desk:
    """A loop with one worker in front of it."""

    def __init__(self, admission: Admission | None = None, *, job_queue_size: int = 100) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self.backend = WatchedEcho()
        self.loop = EngineLoop(self.backend, admission or RollingBatch(BATCH), job_queue_size, self.inbox)
        self.worker = RecordingWorker(self.backend)

    def submit(self, number: int, *prompts: bytes, **params: Any) -> None:
        submit = Submit(number, f"r{number}", [list(prompt) for prompt in prompts], SamplingParams(**params))
        self.inbox.put((self.worker, submit))

    def abort(self, number: int, index: int | None = None) -> None:
        self.inbox.put((self.worker, Abort(number, index)))

    def turn_until(self, *ended: int) -> None:
        """Take turns until each of these requests has had all of its one sequence, or has failed."""
        for _ in range(1000):
            if set(ended) <= {number for number, _ in self.failures()} | {item.number for item in self.last()}:
                return
            self.loop.turn()
        raise AssertionError(f"{ended} never ended: {self.worker.messages}")

    def outputs(self, number: int, index: int = 0) -> list[TokenOutput]:
        items = [item for message in self.worker.messages if isinstance(message, Outputs) for item in message.outputs]
        return [item.output for item in items if (item.number, item.index) == (number, index)]

    def last(self) -> list[SequenceOutput]:
        items = [item for message in self.worker.messages if isinstance(message, Outputs) for item in message.outputs]
        return [item for item in items if item.output.finish_reason is not None]

    def failures(self) -> list[tuple[int, str]]:
        return [(message.number, message.error) for message in self.worker.messages if isinstance(message, Failed)]


def test_request_that_cannot_run_fails_alone() -> None:
    desk = Desk()
    desk.submit(1, b"good")
    desk.submit(2, TOO_LONG)
    desk.submit(3, b"fine")
    desk.turn_until(1, 2, 3)
    assert desk.failures() == [(2, "InvalidRequest")]
    assert [output.token_ids[0] for output in desk.outputs(1)] == [*b"good", EOS]
    assert [output.token_ids[0] for output in desk.outputs(3)] == [*b"fine", EOS]


def test_one_bad_prompt_of_a_list_fails_the_request_and_stops_its_others() -> None:
    desk = Desk()
    desk.submit(1, b"running", b"running too", TOO_LONG, ignore_eos=True)
    desk.turn_until(1)
    desk.submit(2, b"next", max_tokens=1)
    desk.turn_until(2)
    assert desk.failures() == [(1, "InvalidRequest")]
    assert not desk.backend.running


def test_failure_is_the_last_word_on_a_request() -> None:
    desk = Desk()
    desk.submit(1, b"one", b"RAISE@2", b"two", ignore_eos=True)
    desk.turn_until(1)
    assert isinstance(desk.worker.messages[-1], Failed)
    assert len([message for message in desk.worker.messages if isinstance(message, Failed)]) == 1


def test_two_sequences_that_fail_in_one_step_fail_the_request_once() -> None:
    desk = Desk()
    desk.submit(1, b"RAISE@2", b"RAISE@2")
    desk.turn_until(1)
    desk.submit(2, b"a", max_tokens=1)
    desk.turn_until(2)
    assert desk.failures() == [(1, "RequestFailed")]


def test_sequence_aborted_while_it_waits_never_runs() -> None:
    desk = Desk(RollingBatch(1))
    desk.submit(1, b"a", n=2, max_tokens=3, ignore_eos=True)
    desk.loop.turn()
    desk.abort(1, 1)
    desk.turn_until(1)
    desk.submit(2, b"b", max_tokens=1)
    desk.turn_until(2)
    assert desk.outputs(1, 1) == []
    assert desk.backend.joined == ["1-0", "2-0"]


def test_abort_of_every_sequence_one_by_one_is_the_end() -> None:
    desk = Desk(RollingBatch(2), job_queue_size=1)
    desk.submit(1, b"a", n=3, ignore_eos=True)
    desk.loop.turn()
    for index in range(3):
        desk.abort(1, index)
    desk.submit(2, b"b", max_tokens=1)
    desk.submit(3, b"c", max_tokens=1)
    desk.turn_until(2, 3)
    assert desk.failures() == []
    assert not desk.backend.running


def test_places_that_a_step_frees_are_taken_without_a_pause() -> None:
    desk = Desk(RollingBatch(1))
    for number in range(1, 41):
        desk.submit(number, b"a", max_tokens=1)
    started = time.monotonic()
    desk.turn_until(*range(1, 41))
    assert time.monotonic() - started < 2  # a pause of `_IDLE_WAIT` each would make it eight


def test_places_that_a_bad_request_does_not_take_go_to_the_next() -> None:
    desk = Desk(RollingBatch(1))
    desk.submit(1, b"a", max_tokens=1)
    for number in range(2, 42):
        desk.submit(number, TOO_LONG)
    desk.submit(42, b"b", max_tokens=1)
    started = time.monotonic()
    desk.turn_until(1, 42)
    assert time.monotonic() - started < 2


def test_a_full_dynamic_batch_does_not_wait_for_its_delay() -> None:
    desk = Desk(DynamicBatch(2, 60.0))
    for number in range(1, 81):
        desk.submit(number, b"a", max_tokens=2)
    started = time.monotonic()
    desk.turn_until(*range(1, 81))
    assert time.monotonic() - started < 2


def test_dynamic_batch_comes_after_its_delay() -> None:
    desk = Desk(DynamicBatch(2, 0.05))
    desk.submit(1, b"a", max_tokens=1)
    desk.loop.turn()
    assert desk.worker.messages == []
    desk.turn_until(1)
    message = desk.worker.messages[0]
    assert isinstance(message, Outputs)
    assert message.outputs[0].queue_time >= 0.05


def test_crash_of_the_backend_is_told_to_everyone() -> None:
    desk = Desk(RollingBatch(2))
    other = RecordingWorker(desk.backend)
    desk.submit(1, b"running", b"waiting too", ignore_eos=True)
    desk.inbox.put((other, Submit(1, "other", [list(b"CRASH@2")], SamplingParams())))
    desk.submit(2, b"waiting")
    with pytest.raises(RuntimeError, match="as the prompt asked"):
        desk.loop.run()
    assert desk.failures() == [(1, "EngineDead"), (2, "EngineDead")]
    [failed] = [message for message in other.messages if isinstance(message, Failed)]
    assert (failed.number, failed.error) == (1, "EngineDead")
    assert "RuntimeError: the echo backend crashed, as the prompt asked" in failed.message


class BrokenEcho(WatchedEcho):
    """An engine that, once it has crashed, cannot do anything any more."""

    def abort(self, request_id: str) -> None:
        raise RuntimeError("the device is lost")


def test_crash_is_told_also_where_the_backend_is_of_no_more_use() -> None:
    desk = Desk()
    broken = BrokenEcho()
    loop = EngineLoop(broken, RollingBatch(BATCH), 100, desk.inbox)
    desk.submit(1, b"running")
    desk.submit(2, b"CRASH@2")
    desk.submit(3, b"running too")
    with pytest.raises(RuntimeError, match="as the prompt asked"):
        loop.run()
    assert sorted(desk.failures()) == [(1, "EngineDead"), (2, "EngineDead"), (3, "EngineDead")]


def test_stop_ends_an_idle_loop() -> None:
    desk = Desk()
    thread = threading.Thread(target=desk.loop.run)
    thread.start()
    desk.loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_lowest_priority_number_starts_first() -> None:
    inbox: Inbox = queue.SimpleQueue()
    backend = WatchedEcho()
    loop = EngineLoop(backend, RollingBatch(1), 10, inbox)
    worker = RecordingWorker(backend)
    for number, priority in enumerate([0, 5, -1, 5, -1], 1):
        inbox.put((worker, Submit(number, f"r{number}", [list(b"a")], SamplingParams(max_tokens=1), [], priority)))
    loop.turn()
    while any(isinstance(message, Outputs) for message in worker.messages) and len(backend.joined) < 5:
        loop.turn()
    assert [int(request_id.split("-")[0]) for request_id in backend.joined] == [1, 3, 5, 2, 4]


def test_a_request_for_many_sequences_does_not_keep_another_waiting() -> None:
    desk = Desk(RollingBatch(2))
    desk.submit(1, *[b"abc"] * 10, n=30, max_tokens=3)
    for _ in range(2):
        desk.loop.turn()
    desk.submit(2, b"a", max_tokens=1)
    desk.turn_until(2)
    assert len([item for item in desk.last() if item.number == 1]) < 5
    assert desk.failures() == []


def test_a_dynamic_batch_takes_requests_whole() -> None:
    desk = Desk(DynamicBatch(3, 0.0))
    desk.submit(1, b"a", b"b", b"c", b"d", max_tokens=1)
    desk.submit(2, b"e", max_tokens=1)
    desk.turn_until(2)
    assert desk.backend.joined == ["1-0", "1-1", "1-2", "1-3", "2-0"]
