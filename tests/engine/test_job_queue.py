"""The job queue: requests take turns, priorities age, and a large request leaves room for small ones."""

from __future__ import annotations

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prompts import encoded

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.job_queue import MAX_HEAD_START, Job, JobQueue
from lmi_handlers.engine.messages import Submit

SIZE = 12


def make_job(key: int, sequences: int = 1, *, arrived: float = 0.0, priority: int = 0) -> Job[str]:
    submit = Submit(key, f"r{key}", encoded([1]) * sequences, SamplingParams(), priority)
    return Job("worker", submit, key, arrived=arrived)


def serve(queue: JobQueue[str], sequences: int, *, now: float = 1.0) -> list[int]:
    """Start `count` sequences and return the requests that they belong to."""
    return [queue.take(now + step)[0].number for step in range(sequences)]


# Turns


def test_request_with_hundreds_of_sequences_takes_turns_with_others() -> None:
    queue = JobQueue[str](1000, takes_turns=True)
    queue.add(make_job(1, 300))
    assert serve(queue, 3) == [1, 1, 1]
    queue.add(make_job(2, arrived=3.5))
    queue.add(make_job(3, 2, arrived=3.6))
    assert serve(queue, 6, now=4) == [1, 2, 3, 1, 3, 1]


def test_without_turns_whole_requests_are_served_in_order_of_arrival() -> None:
    queue = JobQueue[str](1000, takes_turns=False)
    queue.add(make_job(1, 3))
    queue.add(make_job(2, 2, arrived=0.1))
    assert serve(queue, 5) == [1, 1, 1, 2, 2]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_no_request_gets_a_second_turn_before_each_had_one(sizes: list[int]) -> None:
    queue = JobQueue[str](1000, takes_turns=True)
    for key, size in enumerate(sizes):
        queue.add(make_job(key, size, arrived=key / 1000))
    served = serve(queue, sum(sizes))
    expected = [key for turn in range(max(sizes)) for key, size in enumerate(sizes) if size > turn]
    assert served == expected
    assert not queue


# Priorities


def test_lowest_priority_value_starts_first() -> None:
    queue = JobQueue[str](1000, takes_turns=True)
    for key, priority in enumerate([0, 5, -1, 5, -1]):
        queue.add(make_job(key, arrived=key / 1000, priority=priority))
    assert serve(queue, 5) == [2, 4, 0, 1, 3]


@given(priority=st.integers(-(2**31), 2**31), rivals=st.lists(st.integers(-(2**31), 2**31), min_size=1, max_size=20))
def test_no_priority_starves_a_request(priority: int, rivals: list[int]) -> None:
    """Requests that arrive more than a minute later start later, whatever their priority."""
    queue = JobQueue[str](1000, takes_turns=True)
    queue.add(make_job(0, arrived=0, priority=priority))
    for key, rival in enumerate(rivals, 1):
        queue.add(make_job(key, arrived=2 * MAX_HEAD_START + 0.1 + key, priority=rival))
    assert serve(queue, 1)[0] == 0


def test_urgent_request_with_many_sequences_does_not_block_others() -> None:
    queue = JobQueue[str](1000, takes_turns=True)
    queue.add(make_job(1, 900, priority=-100))
    queue.add(make_job(2))
    served = serve(queue, 62, now=0)  # one per second
    assert served.index(2) in range(int(MAX_HEAD_START) - 1, int(MAX_HEAD_START) + 3)


# Room


def test_full_queue_rejects_a_request() -> None:
    queue = JobQueue[str](2, takes_turns=True)
    queue.add(make_job(1))
    queue.add(make_job(2))
    with raises(QueueFull, "2 waiting job_queue_size=2"):
        queue.add(make_job(3))
    serve(queue, 1)
    queue.add(make_job(5))


def test_sequences_are_counted_instead_of_requests() -> None:
    queue = JobQueue[str](100, takes_turns=True)
    queue.add(make_job(1, 90))
    with raises(QueueFull, "1 90 60"):
        queue.add(make_job(2, 60))
    queue.add(make_job(3, 10))


def test_large_request_leaves_room_for_others() -> None:
    queue = JobQueue[str](100, takes_turns=True)
    queue.add(make_job(1, 5000))  # the queue was empty
    queue.add(make_job(2, 50))  # half of the room
    queue.add(make_job(3, 33))  # a third of it
    with pytest.raises(QueueFull):
        queue.add(make_job(4, 26))
    for key in range(5, 102):
        queue.add(make_job(key))
    with pytest.raises(QueueFull):
        queue.add(make_job(102))


class Clients(RuleBasedStateMachine):
    """Whatever arrives, is served or is aborted, the queue's count stays correct."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = JobQueue[str](SIZE, takes_turns=True)
        self.jobs: list[Job[str]] = []
        self.now = 0.0

    @property
    def waiting(self) -> list[Job[str]]:
        return [job for job in self.jobs if job.waiting]

    @rule(sequences=st.integers(1, 2 * SIZE), priority=st.integers(-9, 9), later=st.floats(0, 40))
    def add(self, sequences: int, priority: int, later: float) -> None:
        self.now += later
        job = make_job(len(self.jobs), sequences, arrived=self.now, priority=priority)
        before = self.waiting
        held = sum(len(other.waiting) for other in before)
        try:
            self.queue.add(job)
        except QueueFull:
            assert before
            assert held + sequences > SIZE
        else:
            self.jobs.append(job)
            assert not before or held + sequences <= SIZE or sequences * len(self.waiting) <= SIZE

    @precondition(lambda self: self.waiting)
    @rule(later=st.floats(0, 40))
    def serve(self, later: float) -> None:
        self.now += later
        expected = {job: list(job.waiting) for job in self.waiting}
        job, index = self.queue.take(self.now)
        assert index == expected[job][0]

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        index = data.draw(st.none() | st.integers(0, 2 * SIZE))
        self.queue.discard(job, index)
        assert index not in job.waiting
        assert index is not None or not job.waiting

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.queue.sequences == sum(len(job.waiting) for job in self.jobs)
        assert bool(self.queue) == bool(self.waiting)
        if self.waiting:
            assert self.queue.oldest_arrival == self.waiting[0].arrived

    def teardown(self) -> None:
        while self.waiting:
            self.serve(0.0)


TestClients = Clients.TestCase
