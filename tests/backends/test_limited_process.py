"""Processes with limits: what ends a job, and in which order jobs run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest
from paths import SUPPORT

from backends.limited_pool import LimitedPool, Shared
from backends.limited_process import PATIENCE, Ended, Exhausted, Expired, LimitedProcess, Stalled

CHILD = "limited_child"


@pytest.fixture(autouse=True)
def _child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=":")


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    made = LimitedProcess(CHILD, b"set up")
    yield made
    made.close()


def test_limit_applies_to_processor_time(process: LimitedProcess) -> None:
    """The first answer takes five times its limit in wall-clock time. The kernel ends the second question."""
    first = process.ask(b"sleep 0.5", seconds=0.1)
    assert first.startswith(b"set up ")
    with pytest.raises(Expired):
        process.ask(b"spin 30", seconds=0.1)
    assert process.ask(b"spin 0.05", seconds=5) == first, "the same child, which has lived through this"


def test_sleeping_child_is_ended_too() -> None:
    """The server ends its own fork, because on some systems no other process can."""
    process = LimitedProcess(CHILD)
    server = process.ask(b"spin 0", seconds=5)
    process._patience = 0.2
    with pytest.raises(Stalled):
        process.ask(b"sleep 60", seconds=5)
    process._patience = PATIENCE
    assert psutil.Process(int(server)).children() == []
    assert process.ask(b"spin 0", seconds=5) == server
    process.close()


@pytest.mark.parametrize("question", [b"grow", b"abort"])
def test_memory_limit(process: LimitedProcess, question: bytes) -> None:
    """Reported by Python or by a library in another language. The child survives."""
    first = process.ask(b"spin 0", seconds=5)
    with pytest.raises(Exhausted):
        process.ask(question, seconds=5)
    assert process.ask(b"spin 0", seconds=5) == first


def test_crash_is_not_reported_as_a_limit(process: LimitedProcess) -> None:
    with pytest.raises(Ended) as caught:
        process.ask(b"crash", seconds=5)
    assert type(caught.value) is Ended
    assert process.ask(b"spin 0", seconds=5)


def test_child_killed_between_questions(process: LimitedProcess) -> None:
    server = psutil.Process(int(process.ask(b"spin 0", seconds=5).split()[-1]))
    server.kill()
    psutil.wait_procs([server], timeout=60)
    assert process.ask(b"spin 0", seconds=5)


def test_kill_leaves_nothing_running(process: LimitedProcess) -> None:
    server = psutil.Process(int(process.ask(b"spin 0", seconds=5).split()[-1]))
    caught: list[Ended] = []

    def ask() -> None:
        with pytest.raises(Ended) as error:
            process.ask(b"spin 60", seconds=90)
        caught.append(error.value)

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 60
    while not (forks := server.children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(forks) == 1
    process.kill()
    asking.join(60)
    assert len(caught) == 1
    gone, alive = psutil.wait_procs([server, *forks], timeout=60)
    assert (len(gone), alive) == (2, [])


# Turns


@pytest.fixture
def pool() -> Iterator[LimitedPool]:
    made = LimitedPool("test", CHILD)
    yield made
    made.close()


class Jobs:
    """Jobs that only use processor time. Records the order in which they begin and end.

    No job gets a turn before `begin` is set, and no job that needs a last turn ends before `end` is set.
    """

    def __init__(self, pool: LimitedPool) -> None:
        self.begin = threading.Event()
        self.end = threading.Event()
        self.ended: list[str] = []
        self.turns: list[tuple[str, float]] = []
        self._pool = pool

    def submit(self, name: str, needed: float) -> Future[None]:
        def job(process: LimitedProcess, seconds: float) -> None:
            assert self.begin.wait(60)
            self.turns.append((name, seconds))
            if needed > seconds:
                raise Expired
            if seconds == math.inf:
                assert self.end.wait(60)
            self.ended.append(name)

        return self._pool.submit(job)


def test_light_jobs_overtake_heavy_ones(pool: LimitedPool) -> None:
    jobs = Jobs(pool)
    heavy = [jobs.submit(f"heavy {number}", 8.0) for number in range(8)]
    middle = jobs.submit("middle", 0.5)
    light = [jobs.submit(f"light {number}", 0.01) for number in range(3)]
    jobs.begin.set()
    for future in (*light, middle):
        future.result(timeout=60)
    assert jobs.ended == ["light 0", "light 1", "light 2", "middle"], "though they came last"
    assert not any(future.done() for future in heavy)
    jobs.submit("late", 0.01).result(timeout=60)
    jobs.end.set()
    for future in heavy:
        future.result(timeout=60)
    assert jobs.ended[5:] == [f"heavy {number}" for number in range(8)]
    assert [seconds for name, seconds in jobs.turns if name == "heavy 7"] == [0.1, 1.0, 2.0, math.inf]


def test_medium_jobs_overtake_heavy_ones(pool: LimitedPool) -> None:
    """Heavy jobs that arrived earlier get no turn before it, except for one that has already begun."""
    jobs = Jobs(pool)
    heavy = [jobs.submit(f"heavy {number}", 8.0) for number in range(8)]
    longer = jobs.submit("longer", 1.5)
    jobs.begin.set()
    jobs.submit("light", 0.5).result(timeout=60)  # so that all jobs wait for the second process
    jobs.end.set()
    for future in (longer, *heavy):
        future.result(timeout=60)
    assert jobs.ended.index("longer") <= 2


def test_heavy_job_is_not_starved_by_short_ones(pool: LimitedPool) -> None:
    """A new short job is always waiting for its first turn."""
    enough = threading.Event()

    def short(process: LimitedProcess, seconds: float) -> None:
        if not enough.is_set():
            pool.submit(short)

    jobs = Jobs(pool)
    middle = jobs.submit("middle", 0.5)
    pool.submit(short)
    jobs.begin.set()
    try:
        middle.result(timeout=30)
    finally:
        enough.set()


def test_cancelled_job_gets_no_further_turn(pool: LimitedPool) -> None:
    jobs = Jobs(pool)
    heavy = [jobs.submit(f"heavy {number}", 8.0) for number in range(4)]
    jobs.begin.set()
    jobs.submit("light", 0.5).result(timeout=60)
    for future in heavy[1:]:
        assert future.cancel()
    jobs.end.set()
    jobs.submit("last", 8.0).result(timeout=60)
    assert jobs.ended == ["light", "heavy 0", "last"]


def test_error_of_a_job(pool: LimitedPool) -> None:
    def job(process: LimitedProcess, seconds: float) -> None:
        raise RuntimeError(f"with {seconds} s")

    with pytest.raises(RuntimeError, match=r"with 0\.1 s"):
        pool.submit(job).result(timeout=60)


def test_close_ends_running_jobs(pool: LimitedPool) -> None:
    started = threading.Event()

    def job(process: LimitedProcess, seconds: float) -> None:
        started.set()
        if seconds < math.inf:
            raise Expired
        process.ask(b"spin 60", seconds=90)

    running, waiting = pool.submit(job), pool.submit(job)
    assert started.wait(60)
    pool.close()
    assert running.done()
    assert waiting.done()


def test_shared_result() -> None:
    def pass_on(done: Future[int], waiter: Future[int]) -> None:
        if waiter.set_running_or_notify_cancel():
            waiter.set_result(done.result())

    future: Future[int] = Future()
    shared = Shared(future)
    first, second = shared.wait(pass_on), shared.wait(pass_on)
    assert first is not None
    assert second is not None
    first.cancel()
    assert not future.cancelled()
    future.set_result(7)
    assert second.result() == 7
    late = shared.wait(pass_on)
    assert late is not None
    assert late.result() == 7

    abandoned: Future[int] = Future()
    shared = Shared(abandoned)
    waiters = [shared.wait(pass_on) for _ in range(3)]
    for waiter in waiters:
        assert waiter is not None
        waiter.cancel()
    assert abandoned.cancelled()
    assert shared.wait(pass_on) is None
