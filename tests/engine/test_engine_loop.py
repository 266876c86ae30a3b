"""The engine loop on the echo backend, one behaviour per test."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import msgspec
import pytest
from facts import says
from prompts import encoded
from recording_echo import EOS, RecordingEcho, RecordingWorker

from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine import loop as engine_loop
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.loop import EngineLoop, Inbox
from lmi_handlers.engine.messages import Abort, Failed, Outputs, SequenceOutput, Submit

REFUSED = b"REFUSE@1"
BATCH = 3


class RecordingInbox(queue.SimpleQueue[Any]):
    """`waits` has the timeouts with which the loop has waited for a message although none was there."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and self.empty():
            self.waits.append(timeout)
        return super().get(block, timeout)


class RemoteWithoutRoom(RecordingEcho):
    """An engine whose failures mean that there is no room for the request, as a remote engine's may."""

    def step(self) -> list[TokenOutput]:
        return [msgspec.structs.replace(output, overloaded=output.error is not None) for output in super().step()]


class LoopWithWorker:
    """An engine loop with one web worker."""

    def __init__(
        self,
        admission: Admission | None = None,
        *,
        job_queue_size: int = 100,
        backend: type[RecordingEcho] = RecordingEcho,
    ) -> None:
        self.inbox = RecordingInbox()
        self.backend = backend()
        self.loop = EngineLoop(self.backend, admission or RollingBatch(BATCH), job_queue_size, self.inbox)
        self.worker = RecordingWorker(self.backend)

    def submit(self, number: int, *prompts: bytes, **params: Any) -> None:
        submit = Submit(number, f"r{number}", encoded(*prompts), SamplingParams(**params))
        self.inbox.put((self.worker, submit))

    def abort(self, number: int, index: int | None = None) -> None:
        self.inbox.put((self.worker, Abort(number, index)))

    def run_until(self, *ended: int) -> None:
        """Run the loop until each of these requests, which have one sequence each, has finished or failed."""
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


def test_adapters_of_requests_that_run_and_that_wait() -> None:
    engine = LoopWithWorker(RollingBatch(1))
    for number, name in enumerate(("b", "a", None, "c", "a"), 1):
        prompts = [msgspec.structs.replace(prompt, adapter=name) for prompt in encoded(b"x")]
        engine.inbox.put((engine.worker, Submit(number, f"r{number}", prompts, SamplingParams(max_tokens=1))))
    assert engine.loop.adapters_in_use() == ((), ())
    engine.loop._receive()
    engine.loop._admit()
    assert engine.loop.adapters_in_use() == (("b",), ("a", "c"))
    engine.run_until(1, 2, 3, 4, 5)
    assert engine.loop.adapters_in_use() == ((), ())


def test_invalid_request_does_not_affect_others() -> None:
    engine = LoopWithWorker()
    engine.submit(1, b"good")
    engine.submit(2, REFUSED)
    engine.submit(3, b"fine")
    engine.run_until(1, 2, 3)
    assert engine.failures() == [(2, "InvalidRequest")]
    assert [output.token_ids[0] for output in engine.outputs(1)] == [*b"good", EOS]
    assert [output.token_ids[0] for output in engine.outputs(3)] == [*b"fine", EOS]


def test_request_for_which_an_engine_has_no_room_is_answered_as_one_that_does_not_fit_into_the_queue() -> None:
    engine = LoopWithWorker(backend=RemoteWithoutRoom)
    engine.submit(1, b"good")
    engine.submit(2, b"RAISE@1")
    engine.run_until(1, 2)
    assert engine.failures() == [(2, "QueueFull")]


def test_invalid_prompt_fails_the_request_and_stops_its_other_prompts() -> None:
    engine = LoopWithWorker()
    engine.submit(1, b"running", b"running too", REFUSED, ignore_eos=True)
    engine.run_until(1)
    engine.submit(2, b"next", max_tokens=1)
    engine.run_until(2)
    assert engine.failures() == [(1, "InvalidRequest")]
    assert not engine.backend.running


def test_nothing_is_sent_for_a_request_after_its_failure() -> None:
    engine = LoopWithWorker()
    engine.submit(1, b"one", b"RAISE@2", b"two", ignore_eos=True)
    engine.run_until(1)
    assert isinstance(engine.worker.messages[-1], Failed)
    assert len([message for message in engine.worker.messages if isinstance(message, Failed)]) == 1


def test_request_fails_once_if_two_sequences_fail_in_one_step() -> None:
    engine = LoopWithWorker()
    engine.submit(1, b"RAISE@2", b"RAISE@2")
    engine.run_until(1)
    engine.submit(2, b"a", max_tokens=1)
    engine.run_until(2)
    assert engine.failures() == [(1, "RequestFailed")]


def test_sequence_aborted_in_the_queue_never_runs() -> None:
    engine = LoopWithWorker(RollingBatch(1))
    engine.submit(1, b"a", n=2, max_tokens=3, ignore_eos=True)
    engine.loop.turn()
    engine.abort(1, 1)
    engine.run_until(1)
    engine.submit(2, b"b", max_tokens=1)
    engine.run_until(2)
    assert engine.outputs(1, 1) == []
    assert engine.backend.joined == ["1-0", "2-0"]


def test_aborting_every_sequence_ends_the_request() -> None:
    engine = LoopWithWorker(RollingBatch(2), job_queue_size=1)
    engine.submit(1, b"a", n=3, ignore_eos=True)
    engine.loop.turn()
    for index in range(3):
        engine.abort(1, index)
    engine.submit(2, b"b", max_tokens=1)
    engine.submit(3, b"c", max_tokens=1)
    engine.run_until(2, 3)
    assert engine.failures() == []
    assert not engine.backend.running


def test_freed_places_are_filled_without_a_pause() -> None:
    engine = LoopWithWorker(RollingBatch(1))
    for number in range(1, 41):
        engine.submit(number, b"a", max_tokens=1)
    engine.run_until(*range(1, 41))
    assert engine.inbox.waits == []


def test_place_of_an_invalid_request_goes_to_the_next_request() -> None:
    engine = LoopWithWorker(RollingBatch(1))
    engine.submit(1, b"a", max_tokens=1)
    for number in range(2, 42):
        engine.submit(number, REFUSED)
    engine.submit(42, b"b", max_tokens=1)
    engine.run_until(1, 42)
    assert engine.inbox.waits == []


def test_full_dynamic_batch_starts_without_delay() -> None:
    engine = LoopWithWorker(DynamicBatch(2, 60.0))
    for number in range(1, 81):
        engine.submit(number, b"a", max_tokens=2)
    engine.run_until(*range(1, 81))
    assert engine.inbox.waits == []


def test_dynamic_batch_starts_after_its_delay() -> None:
    engine = LoopWithWorker(DynamicBatch(2, 0.05))
    engine.submit(1, b"a", max_tokens=1)
    started = time.monotonic()
    engine.run_until(1)
    assert time.monotonic() - started >= 0.05
    message = engine.worker.messages[0]
    assert isinstance(message, Outputs)
    assert message.outputs[0].queue_time >= 0.05


def test_backend_crash_fails_the_requests_of_all_workers() -> None:
    engine = LoopWithWorker(RollingBatch(2))
    other = RecordingWorker(engine.backend)
    engine.submit(1, b"running", b"waiting too", ignore_eos=True)
    engine.inbox.put((other, Submit(1, "other", encoded(b"CRASH@2"), SamplingParams())))
    engine.submit(2, b"waiting")
    with pytest.raises(RuntimeError, match="as the prompt asked"):
        engine.loop.run()
    assert engine.failures() == [(1, "EngineDead"), (2, "EngineDead")]
    [failed] = [message for message in other.messages if isinstance(message, Failed)]
    assert (failed.number, failed.error) == (1, "EngineDead")
    assert says(failed.message, "RuntimeError echo crashed")


class BrokenEcho(RecordingEcho):
    """A backend on which calls fail after the crash, too."""

    def abort(self, request_id: str) -> None:
        raise RuntimeError("the device is lost")


def test_crash_is_reported_even_if_aborts_fail() -> None:
    engine = LoopWithWorker()
    broken = BrokenEcho()
    loop = EngineLoop(broken, RollingBatch(BATCH), 100, engine.inbox)
    engine.submit(1, b"running")
    engine.submit(2, b"CRASH@2")
    engine.submit(3, b"running too")
    with pytest.raises(RuntimeError, match="as the prompt asked"):
        loop.run()
    assert sorted(engine.failures()) == [(1, "EngineDead"), (2, "EngineDead"), (3, "EngineDead")]


def test_stop_ends_an_idle_loop() -> None:
    engine = LoopWithWorker()
    thread = threading.Thread(target=engine.loop.run)
    thread.start()
    engine.loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_lowest_priority_value_starts_first() -> None:
    inbox: Inbox = queue.SimpleQueue()
    backend = RecordingEcho()
    loop = EngineLoop(backend, RollingBatch(1), 10, inbox)
    worker = RecordingWorker(backend)
    for number, priority in enumerate([0, 5, -1, 5, -1], 1):
        inbox.put((worker, Submit(number, f"r{number}", encoded(b"a"), SamplingParams(max_tokens=1), priority)))
    loop.turn()
    while any(isinstance(message, Outputs) for message in worker.messages) and len(backend.joined) < 5:
        loop.turn()
    assert [int(request_id.split("-")[0]) for request_id in backend.joined] == [1, 3, 5, 2, 4]


class SlowToStart(RecordingEcho):
    """An engine that takes long to read the parameters of a sequence."""

    def add_request(self, request: TokenRequest) -> None:
        time.sleep(0.01)
        super().add_request(request)


def test_sequences_that_start_slowly_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs has its next tokens meanwhile. All of them start in the end, in the places that there are."""
    monkeypatch.setattr(engine_loop, "_LONGEST_START", 0.02)
    engine = LoopWithWorker(RollingBatch(30), backend=SlowToStart)
    engine.submit(1, b"first", max_tokens=5, ignore_eos=True)
    engine.loop.turn()
    engine.submit(2, *[b"x"] * 20, max_tokens=200, ignore_eos=True)
    while 1 not in {item.number for item in engine.last()}:
        engine.loop.turn()
    assert engine.loop.waiting > 0
    while engine.loop.waiting:
        engine.loop.turn()
    assert engine.loop.running == 20


def test_request_with_many_sequences_does_not_block_others() -> None:
    engine = LoopWithWorker(RollingBatch(2))
    engine.submit(1, *[b"abc"] * 10, n=30, max_tokens=3)
    for _ in range(2):
        engine.loop.turn()
    engine.submit(2, b"a", max_tokens=1)
    engine.run_until(2)
    assert len([item for item in engine.last() if item.number == 1]) < 5
    assert engine.failures() == []


def test_dynamic_batch_does_not_split_requests() -> None:
    engine = LoopWithWorker(DynamicBatch(3, 0.0))
    engine.submit(1, b"a", b"b", b"c", b"d", max_tokens=1)
    engine.submit(2, b"e", max_tokens=1)
    engine.run_until(2)
    assert engine.backend.joined == ["1-0", "1-1", "1-2", "1-3", "2-0"]
