"""How other processes judge the engine by its heartbeat file, and which failed loads are retried."""

from __future__ import annotations

import errno
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from facts import says
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.engine import heartbeat
from lmi_handlers.engine.heartbeat import CPU_PATIENCE, Activity, Heartbeat, HeartbeatReader, explain

LIMIT = 60.0


class Clock:
    """The clock of heartbeats and of those who judge them. Only tests advance it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pair(tmp_path: Path, clock: Clock) -> tuple[Heartbeat, HeartbeatReader]:
    path = tmp_path / "heartbeat"
    writer, reader = Heartbeat.create(path, clock), HeartbeatReader(path, clock)
    writer.start(patience=CPU_PATIENCE)
    return writer, reader


Pair = tuple[Heartbeat, HeartbeatReader]


def test_loading_engine_is_not_judged(tmp_path: Path, clock: Clock) -> None:
    reader = HeartbeatReader(tmp_path / "heartbeat", clock)
    assert reader.suspicion(LIMIT) is None
    Heartbeat.create(tmp_path / "heartbeat", clock).beat()
    clock.now += 10_000
    assert reader.suspicion(LIMIT) is None
    assert reader.stall(LIMIT, since=0) is None


def test_new_engine_does_not_inherit_the_state_of_the_dead_one(pair: Pair, tmp_path: Path) -> None:
    _, reader = pair
    before = reader.serving
    Heartbeat.create(tmp_path / "heartbeat")
    assert (before, reader.serving) == (True, False)


def test_engine_without_a_pulse_is_first_suspected_then_killed(pair: Pair, clock: Clock) -> None:
    writer, reader = pair
    clock.now += 4.9
    assert reader.suspicion(LIMIT) is None
    clock.now += 0.2
    assert "has not run for 5 s" in (reader.suspicion(LIMIT) or "")
    assert reader.stall(LIMIT, since=0) is None
    clock.now += LIMIT - 5
    assert "has not run for 60 s" in (reader.stall(LIMIT, since=0) or "")
    writer.beat()
    writer.rest()
    assert reader.suspicion(LIMIT) is None
    assert reader.stall(LIMIT, since=0) is None


def test_idle_engine_needs_no_progress(pair: Pair, clock: Clock) -> None:
    writer, reader = pair
    for _ in range(1000):
        clock.now += 0.5
        writer.rest()
        writer.beat()
        assert reader.suspicion(LIMIT) is None


def run(writer: Heartbeat, clock: Clock, seconds: float, *, polls: bool) -> None:
    """Let time pass in steps that return nothing, or in a single step that does not return."""
    end = clock.now + seconds
    while clock.now < end:
        if polls:
            writer.enter(Activity.STEP, 3)
        writer.beat()
        clock.now += 0.5


@pytest.mark.parametrize(
    ("polls", "words"),
    [(False, "no progress 61 step 3 running"), (True, "no progress for 61 s 3 running")],
)
def test_empty_steps_and_a_step_that_never_returns_are_treated_alike(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch, polls: bool, words: str
) -> None:
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.0)
    writer.enter(Activity.STEP, 3)
    run(writer, clock, 6, polls=polls)
    assert reader.suspicion(LIMIT) is not None
    assert reader.stall(LIMIT, since=0) is None
    run(writer, clock, 55, polls=polls)
    assert says(reader.stall(LIMIT, since=0) or "", words)
    writer.progress()
    assert reader.suspicion(LIMIT) is None


@pytest.mark.parametrize(("patience", "ends_after"), [(CPU_PATIENCE, 600), (1.0, 60)])
def test_computing_step_has_more_time_on_a_cpu(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch, patience: float, ends_after: int
) -> None:
    writer, reader = pair
    writer.start(patience=patience)
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.5 * clock.now)  # uses half a core
    writer.enter(Activity.STEP, 1)
    run(writer, clock, ends_after - 1, polls=False)
    assert reader.suspicion(LIMIT) is None
    assert reader.stall(LIMIT, since=0) is None
    run(writer, clock, 2, polls=False)
    assert reader.stall(LIMIT, since=0) is not None


def test_other_processes_are_not_read_while_the_loop_computes(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a busy Python thread, each read of /proc waits for the GIL: for all processes together, that is seconds."""
    writer, reader = pair
    reads: list[float] = []

    def read() -> float:
        reads.append(clock.now)
        return 0.0

    monkeypatch.setattr(heartbeat, "_group_cpu_seconds", read)
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.5 * clock.now)
    writer.enter(Activity.STEP, 1)
    run(writer, clock, 20, polls=False)
    assert reader.suspicion(LIMIT) is None
    assert len(reads) <= 1, "the first pulse has nothing to compare with"
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.0)
    run(writer, clock, 20, polls=False)
    assert len(reads) > 10


def test_frequent_polling_does_not_count_as_computing(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.5 * clock.now)
    run(writer, clock, 61, polls=True)
    assert reader.stall(LIMIT, since=0) is not None


def test_time_in_which_the_reader_was_paused_too_does_not_count(pair: Pair, clock: Clock) -> None:
    _, reader = pair
    clock.now += 10_000  # a paused container or a sleeping laptop
    assert reader.stall(LIMIT, since=0) is not None
    assert reader.stall(LIMIT, since=clock.now - 1) is None


def give_up(writer: Heartbeat) -> None:
    writer.enter(Activity.ABORT, 1)
    writer.rest()


def test_time_of_requests_given_up_in_turn_adds_up(pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.0)
    for _ in range(6):
        run(writer, clock, 9, polls=True)
        assert reader.suspicion(LIMIT) is not None
        give_up(writer)
        for _ in range(100):
            clock.now += 10
            writer.beat()
            writer.rest()
            assert reader.suspicion(LIMIT) is None, "an idle engine must get a chance to prove that it works"
            assert reader.stall(LIMIT, since=0) is None
    run(writer, clock, 9, polls=True)
    assert reader.stall(LIMIT, since=0) is None, "no request has been given up yet"
    give_up(writer)
    assert says(reader.stall(LIMIT, since=0) or "", "63 given up")
    writer.progress()
    assert reader.stall(LIMIT, since=0) is None


@pytest.mark.parametrize(("patience", "times"), [(0.1, 1000), (20.0, 3)])
def test_impatient_clients_do_not_end_the_engine_for_a_patient_one(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch, patience: float, times: int
) -> None:
    """The first token takes 25 s, and only the last client waits that long."""
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.0)
    for _ in range(times):
        writer.enter(Activity.STEP, 1)
        for _ in range(int(patience / 0.1)):
            clock.now += 0.1
            writer.beat()
            writer.enter(Activity.STEP, 1)
        give_up(writer)
        assert reader.stall(LIMIT, since=0) is None
    run(writer, clock, 25, polls=True)
    assert reader.stall(LIMIT, since=0) is None


def test_computing_for_given_up_requests_has_more_time_on_a_cpu(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.5 * clock.now)
    for _ in range(11):
        writer.enter(Activity.STEP, 1)
        run(writer, clock, 50, polls=False)
        give_up(writer)
        assert reader.stall(LIMIT, since=0) is None
    for _ in range(2):
        writer.enter(Activity.STEP, 1)
        run(writer, clock, 50, polls=False)
        give_up(writer)
    assert reader.stall(LIMIT, since=0) is not None


def test_pause_does_not_count_as_given_up_work(pair: Pair, clock: Clock) -> None:
    """When a paused container resumes, its requests are past their deadlines."""
    writer, reader = pair
    for _ in range(3):
        writer.enter(Activity.STEP, 1)
        clock.now += 1000
        give_up(writer)
        writer.beat()
        writer.enter(Activity.STEP, 1)
        assert reader.stall(LIMIT, since=0) is None


@pytest.mark.parametrize("call", [Activity.ADD_REQUEST, Activity.ABORT])
def test_long_calls_that_return_are_progress(pair: Pair, clock: Clock, call: Activity) -> None:
    writer, reader = pair
    writer.enter(Activity.STEP, 1)
    for _ in range(200):
        writer.enter(call, 1)
        clock.now += 0.5
        writer.beat()
        assert reader.suspicion(LIMIT) is None
        assert reader.stall(LIMIT, since=0) is None


def test_empty_steps_are_detected_even_if_requests_keep_arriving(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    monkeypatch.setattr(writer, "_cpu_seconds", lambda: 0.0)
    for _ in range(61):
        writer.enter(Activity.ADD_REQUEST, 1)
        run(writer, clock, 1, polls=True)
    assert reader.stall(LIMIT, since=0) is not None


class Judged(RuleBasedStateMachine):
    """Whatever the history, an engine is killed exactly if it has worked for too long without a result."""

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "heartbeat"
        self.writer, self.reader = Heartbeat.create(path, self.clock), HeartbeatReader(path, self.clock)
        self.writer.start(patience=1.0)
        self.writer._cpu_seconds = float
        self.sequences, self.worked, self.beats, self.given_up, self.silent = 0, 0.0, 0, 0.0, 0.0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(seconds=st.sampled_from([0.0, 0.5, 20.0]))
    def arrive(self, seconds: float) -> None:
        self.writer.enter(Activity.ADD_REQUEST, self.sequences)
        self.sequences += 1
        self.clock.now += seconds
        self.silent += seconds
        self.writer.enter(Activity.STEP, self.sequences)

    @precondition(lambda self: self.sequences)
    @rule(outputs=st.booleans())
    def step(self, outputs: bool) -> None:
        self.writer.enter(Activity.STEP, self.sequences)
        if outputs:
            self.writer.progress()
            self.worked, self.beats, self.given_up = 0.0, 0, 0.0

    @precondition(lambda self: self.sequences)
    @rule()
    def give_up(self) -> None:
        self.writer.enter(Activity.ABORT, self.sequences)
        self.sequences -= 1
        if not self.sequences:
            self.writer.rest()
            worked = min(self.worked, 2.0 * (self.beats + 1))
            self.given_up += worked if worked >= 1 else 0.0
            self.worked, self.beats = 0.0, 0
        else:
            self.writer.enter(Activity.STEP, self.sequences)

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]), beats=st.booleans())
    def pass_time(self, seconds: float, beats: bool) -> None:
        self.clock.now += seconds
        self.silent += seconds
        if self.sequences:
            self.worked += seconds
        else:
            self.writer.rest()
        if beats:
            self.writer.beat()
            self.silent = 0.0
            self.beats += bool(self.sequences)

    @invariant()
    def ended_where_it_must(self) -> None:
        if hasattr(self, "reader"):
            ended = max(self.silent, self.worked, self.given_up) > LIMIT
            assert (self.reader.stall(LIMIT, since=0) is not None) == ended


TestJudged = Judged.TestCase
TestJudged.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_heartbeat_of_a_step_takes_microseconds() -> None:
    writer = Heartbeat()
    writer.start(patience=1.0)
    times = []
    for _ in range(50):
        started = time.perf_counter()
        for _ in range(100):
            writer.enter(Activity.STEP, 32)
            writer.progress()
        times.append((time.perf_counter() - started) / 100)
    assert statistics.median(times) < 50e-6  # about 1 on an idle machine


def test_only_the_calling_threads_processor_time_counts() -> None:
    """Other busy threads in the process, such as those that answer web workers, do not count."""
    writer = Heartbeat()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            sum(range(1000))

    writer.start(patience=1.0)
    neighbour = threading.Thread(target=busy)
    neighbour.start()
    try:
        before = writer._cpu_seconds()
        time.sleep(0.5)
        assert writer._cpu_seconds() - before < 0.25
    finally:
        stop.set()
        neighbour.join()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's schedstat")
def test_a_thread_that_others_starve_counts_as_computing() -> None:
    """As the shadow's on a busy machine: beside one that is busy, the lowest priority has 1.4 % of a processor."""
    writer = Heartbeat()
    cpu = min(os.sched_getaffinity(0))
    shares: list[float] = []

    def starve() -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread only
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        writer.start(patience=CPU_PATIENCE)
        started, before = time.monotonic(), writer._cpu_seconds()
        while (now := time.monotonic()) < started + 1:
            sum(range(1000))
        shares.append((writer._cpu_seconds() - before) / (now - started))

    busy = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
    with hog:
        try:
            assert hog.stdout is not None
            hog.stdout.readline()
            thread = threading.Thread(target=starve)
            thread.start()
            thread.join()
        finally:
            hog.kill()
    assert shares[0] > 0.5


def test_pulse_needs_no_file_descriptor(pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = pair
    monkeypatch.setattr(os, "getpgrp", os.getpid)  # as an engine process does
    writer.enter(Activity.STEP, 1)
    clock.now += 2
    _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # with 0, `poll` would fail in other threads
    try:
        writer.beat()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    clock.now += 0.5
    writer._cpu_seconds = float
    writer.beat()
    clock.now += 4
    assert reader.suspicion(LIMIT) is not None, "unknown processor time must not count as computing"


# Errors that may be gone at the next attempt


def io_error() -> Exception:
    """A real I/O error: the first page of a process's memory cannot be read."""
    with open("/proc/self/mem", "rb", buffering=0) as file:  # noqa: PTH123
        try:
            file.read(1)
        except OSError as error:
            return error
    raise AssertionError("it could be read")


def missing_file() -> Exception:
    try:
        Path("/nowhere/config.json").read_bytes()
    except OSError as error:
        return error
    raise AssertionError("it could be read")


def wrapped(cause: Exception) -> Exception:
    """The error as engines raise it: as the cause of another one."""
    try:
        raise RuntimeError("Engine core initialization failed. See root cause above.") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        (MemoryError(), True),
        (wrapped(MemoryError()), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317"), True),
        (missing_file(), False),
        (KeyError("model_type"), False),
        (ValueError("option out of memory is not an option"), False),
        (RuntimeError("size mismatch for lm_head.weight"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_which_failed_loads_are_retried(cause: Exception, again: bool) -> None:
    verdict = ConfigError("option.model_id: m cannot be loaded")
    failure: Any = load_failure(verdict, cause)
    assert isinstance(failure, LoadFailed if again else ConfigError)
    assert str(failure) == str(verdict)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc")
def test_load_is_retried_after_a_file_system_error() -> None:
    assert isinstance(load_failure(ConfigError("x"), io_error()), LoadFailed)


@pytest.mark.model
def test_load_is_retried_after_torch_runs_out_of_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert isinstance(load_failure(ConfigError("x"), caught.value), LoadFailed)


def test_an_engine_says_why_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    explain(path, "there is no file, so nobody is told")
    Heartbeat.create(path)
    reader = HeartbeatReader(path)
    assert reader.cause == ""
    explain(path, "s3://key:pass@bucket?token=abc cannot be read")
    assert reader.cause == "s3://******@bucket?token=****** cannot be read"
    explain(path, "\u00e9" * 2000)
    assert reader.cause == "\u00e9" * 500
    assert not reader.serving
    Heartbeat.create(path)
    assert reader.cause == ""
