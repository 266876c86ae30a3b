"""The engine loop as a state machine: whatever web workers do, every request ends exactly once and nothing leaks."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prompts import encoded
from recording_echo import EOS, MAX_MODEL_LEN, RecordingEcho, RecordingWorker

from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import Abort, EngineMessage, Failed, Outputs, SequenceOutput, Submit

LONGEST = b"x" * (MAX_MODEL_LEN - 1)
REFUSED = b"REFUSE@1"
BATCH = 3
QUEUE = 2


def echoed(prompt: bytes, params: SamplingParams) -> tuple[list[int], FinishReason]:
    """The echo backend's answer if nothing goes wrong."""
    room = min(params.max_tokens or MAX_MODEL_LEN, MAX_MODEL_LEN - len(prompt))
    tokens = [*(prompt * MAX_MODEL_LEN)[:room]] if params.ignore_eos else [*prompt, EOS][:room]
    return tokens, FinishReason.EOS_TOKEN if EOS in tokens else FinishReason.LENGTH


def fault_of(prompt: bytes, params: SamplingParams) -> str | None:
    """The error class that this prompt causes, or None."""
    if prompt == REFUSED:
        return "InvalidRequest"
    name, _, at = prompt.partition(b"@")
    if name == b"RAISE" and len(echoed(prompt, params)[0]) >= int(at):
        return "RequestFailed"
    return None


class Tracked:
    """A request, its expected results, and its results so far."""

    def __init__(self, worker: RecordingWorker, submit: Submit) -> None:
        self.worker = worker
        self.submit = submit
        self.handled = False
        self.key: int | None = None
        n, params = submit.sampling_params.n, submit.sampling_params
        self.prompts = [bytes(prompt.token_ids) for prompt in submit.prompts for _ in range(n)]
        self.expected = [echoed(prompt, params) for prompt in self.prompts]
        self.faults = [fault_of(prompt, params) for prompt in self.prompts]
        self.tokens: list[list[int]] = [[] for _ in self.prompts]
        self.finished: dict[int, FinishReason] = {}
        self.aborted: set[int] = set()
        self.engine_time = 0.0
        self.gone = False
        self.gone_handled = False
        self.failure: str | None = None

    @property
    def ended(self) -> bool:
        """Whether no more messages may arrive."""
        return self.gone or self.failure is not None or len(self.finished.keys() | self.aborted) == len(self.prompts)

    def take_output(self, item: SequenceOutput) -> None:
        index, output = item.index, item.output
        assert not self.gone, "delivered after the request was aborted"
        assert self.failure is None, "delivered after the request had failed"
        assert index not in self.aborted, "delivered after the sequence was aborted"
        assert index not in self.finished, "delivered after the sequence had finished"
        assert item.queue_time >= 0
        assert item.engine_time > self.engine_time - 1e-9
        self.engine_time = item.engine_time
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
        """When the loop is idle, the request must have ended exactly once, as expected."""
        if self.gone:
            return
        running = [index for index in range(len(self.prompts)) if index not in self.aborted]
        if self.failure is None:
            assert not any(self.faults[index] for index in running), "the request should have failed"
            for index in running:
                assert (self.tokens[index], self.finished[index]) == self.expected[index]


class Workers(RuleBasedStateMachine):
    """Three web workers that submit, abort and disconnect at random."""

    admission: Callable[[], Admission]
    dynamic: bool
    batch = BATCH

    @initialize()
    def start(self) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self.backend = RecordingEcho()
        self.loop = EngineLoop(self.backend, type(self).admission(), QUEUE, self.inbox)
        self.workers = [RecordingWorker(self.backend) for _ in range(3)]
        self.requests: dict[tuple[RecordingWorker, int], Tracked] = {}
        self.accepted = 0

    # What workers do

    @rule(
        worker=st.integers(0, 2),
        prompts=st.lists(
            st.sampled_from([b"a", b"bc", b"defghi", b"RAISE@1", b"RAISE@3", LONGEST, REFUSED]),
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
        submit = Submit(number, f"r{number}", encoded(*prompts), params)
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
    def abort_unknown_request(self, worker: int) -> None:
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
        if not self.has_work():  # no precondition: with a delay, examples would not be reproducible
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
            request.gone_handled = request.gone  # before its start, it may have been rejected
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
                assert running == self.batch, "rejected although there were free places"

    def has_work(self) -> bool:
        return not self.inbox.empty() or any(not request.ended for request in self.requests.values())

    @invariant()
    def batch_is_bounded(self) -> None:
        assert self.backend.max_running <= self.batch

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
    def nothing_joins_a_running_static_batch(self) -> None:
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
        assert not self.backend.running, "a sequence is running without a request"
        for request in self.requests.values():
            request.check_end()
        self.all_time_is_shared()
        self.nothing_is_left()

    def all_time_is_shared(self) -> None:
        """Whatever has ended the requests, they have used as much time as the engine's steps have taken."""
        used = math.fsum(meter.engine_time for meter in self.backend.meters.values())
        assert used == pytest.approx(self.loop.busy_time, abs=1e-9)

    def nothing_is_left(self) -> None:
        """A further request finds the engine empty."""
        worker = RecordingWorker(self.backend)
        self.inbox.put((worker, Submit(1, "last", encoded([97]), SamplingParams(max_tokens=1))))
        for _ in range(2):
            if not worker.messages:
                self.loop.turn()
        [message] = worker.messages
        assert isinstance(message, Outputs)
        assert message.outputs[0].output.token_ids == [97]
        assert self.backend.max_running <= self.batch


class RollingWorkers(Workers):
    """With continuous batching."""

    admission = staticmethod(lambda: RollingBatch(BATCH))
    dynamic = False


class DynamicWorkers(Workers):
    """With dynamic batching and no delay: everything that waits is a batch."""

    admission = staticmethod(lambda: DynamicBatch(BATCH, 0.0))
    dynamic = True


class DelayedWorkers(Workers):
    """With dynamic batching that waits for a short time before it starts a batch."""

    admission = staticmethod(lambda: DynamicBatch(BATCH, 0.002))
    dynamic = True


SCHEDULES = settings(max_examples=60, stateful_step_count=30, deadline=None)
RollingWorkers.TestCase.settings = SCHEDULES
DynamicWorkers.TestCase.settings = SCHEDULES
DelayedWorkers.TestCase.settings = SCHEDULES
TestRollingBatch = RollingWorkers.TestCase
TestDynamicBatch = DynamicWorkers.TestCase
TestDelayedBatch = DelayedWorkers.TestCase
