"""Whether an engine lives, for others to see: a few numbers in a file that each process maps into its memory.

The engine process writes them, the supervisor and the web workers read them. Nothing is sent and nobody has to answer, so an
engine that is stopped, or in which native code holds Python's lock, is seen as what it is.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

PULSE_INTERVAL = 0.5
SUSPECT_SECONDS = 5.0
"""After so many seconds without a sign of life `/ping` is 503, until there is one again."""

CPU_PATIENCE = 10.0
"""An engine on the CPU that is computing may be silent for so many times `option.stall_timeout`."""

_CALL_UNDER_WAY = 1.0
"""A backend call that has run this long is treated as work, not polling. So is a request that was given up."""

_BEAT_COUNTS = 2.0
"""Seconds of given-up work for which one pulse is evidence: time in which this process was paused has no pulse."""

_COMPUTING_FOR = 3.0
"""Seconds for which the processor's use counts as evidence that something is computed."""

_LEAST_USE = 0.01
"""Share of a core below which a thread only waits."""


class Activity(enum.IntEnum):
    """What the engine loop is doing: waiting for requests, or one of its calls into the backend."""

    IDLE = 0
    STEP = 1
    ADD_REQUEST = 2
    ABORT = 3


# Plain integers: an enum's member costs more to index with or to compare than all else that a step does here.
_IDLE, _STEP = Activity.IDLE.value, Activity.STEP.value
_CELLS = 8
_PULSE, _PROGRESS, _COMPUTING, _GIVEN_UP, _ACTIVITY, _SINCE, _RUNNING, _PATIENCE = range(_CELLS)
_SIZE = 8 * _CELLS


def _map(descriptor: int) -> memoryview[float]:
    """Aligned doubles: nobody sees half of one."""
    return memoryview(mmap.mmap(descriptor, _SIZE)).cast("d")


class Heartbeat:
    """The engine's side. The loop's thread calls these methods; `beat`, `compare` and `progress` may be called from others.

    Progress is an output, or a part of a prompt that has been computed; being idle needs none, and a call that starts or aborts
    a sequence has made progress if it returns. Work that led to nothing before its clients gave up adds up, so that an engine
    whose every request times out does not look new to each.
    """

    def __init__(self, descriptor: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file the numbers are this process's own."""
        self._cells = _map(descriptor)
        self._clock = clock
        self._lock = threading.Lock()  # for what `progress` changes
        self._beats = 0
        self._work = 0
        self._cpu_seconds: Callable[[], float] = time.process_time
        self._cpu = (0.0, math.inf, math.inf)

    @classmethod
    def create(cls, path: Path, clock: Callable[[], float] = time.monotonic) -> Heartbeat:
        """Take over the file, or make one; what a dead engine has left in it is gone."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, bytes(_SIZE), 0)
            return cls(descriptor, clock)
        finally:
            os.close(descriptor)

    def start(self, *, patience: float) -> None:
        """Say that requests are taken, and begin to be judged. Called by the thread that will run the loop."""
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._cpu_seconds = lambda: time.clock_gettime(clock)
        now = self._clock()
        cells = self._cells
        cells[_PULSE] = cells[_PROGRESS] = now
        cells[_PATIENCE] = patience

    def enter(self, activity: Activity, running: int) -> None:
        """The loop calls into the backend, which has so many sequences."""
        now = self._clock()
        cells = self._cells
        if cells[_ACTIVITY] != _STEP:
            self._settle(now)
        cells[_RUNNING] = running
        cells[_SINCE] = now
        cells[_ACTIVITY] = activity

    def progress(self) -> None:
        """Something has come of the work."""
        with self._lock:
            self._cells[_PROGRESS] = self._clock()
            self._cells[_GIVEN_UP] = 0.0
            self._beats = 0

    def compare(self, work: int) -> None:
        """Take `work`, the backend's own count, for progress where it has changed since the last call."""
        if work != self._work:
            self._work = work
            self.progress()

    def rest(self) -> None:
        """The backend has no sequences."""
        now = self._clock()
        cells = self._cells
        self._settle(now)
        with self._lock:
            worked = min(now - cells[_PROGRESS], _BEAT_COUNTS * (self._beats + 1))
            if cells[_ACTIVITY] != _IDLE and worked >= _CALL_UNDER_WAY:
                computing = now - cells[_COMPUTING] < _COMPUTING_FOR
                cells[_GIVEN_UP] += worked / (cells[_PATIENCE] if computing else 1.0)
            cells[_ACTIVITY] = _IDLE
            cells[_PROGRESS] = now
            self._beats = 0

    def _settle(self, now: float) -> None:
        """Time that was idle, or went into calls that started or aborted sequences, is none in which nothing came of steps."""
        cells = self._cells
        with self._lock:
            if cells[_ACTIVITY] == _IDLE:
                cells[_PROGRESS] = now
                self._beats = 0
            elif cells[_ACTIVITY] != _STEP:
                cells[_PROGRESS] = min(now, cells[_PROGRESS] + now - cells[_SINCE])

    def beat(self) -> None:
        """Show that threads of this process run, and whether the call under way uses the processor."""
        cells = self._cells
        self._beats += 1
        now = self._clock()
        cells[_PULSE] = now
        before, own, others = self._cpu
        if cells[_ACTIVITY] == _IDLE or now - cells[_PROGRESS] < _CALL_UNDER_WAY:
            self._cpu = now, math.inf, math.inf  # nothing to compare with next time
            return
        self._cpu = now, self._cpu_seconds(), _group_cpu_seconds()
        least = _LEAST_USE * (now - before)
        in_call = now - cells[_SINCE] >= _CALL_UNDER_WAY
        if (in_call and self._cpu[1] - own > least) or self._cpu[2] - others > least:
            cells[_COMPUTING] = now


class HeartbeatReader:
    """The others' side. An engine that has not loaded is never judged."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._cells: memoryview[float] | None = None

    @property
    def serving(self) -> bool:
        """Whether the engine has loaded."""
        cells = self._mapped()
        return cells is not None and cells[_PATIENCE] > 0

    def suspicion(self, stall_timeout: float) -> str | None:
        """Say what is wrong with an engine that should take no further requests for now; None where nothing is."""
        return self._stall(min(SUSPECT_SECONDS, stall_timeout / 2), stall_timeout)

    def stall(self, stall_timeout: float, *, since: float) -> str | None:
        """Say why an engine must be ended, None where it must not. What was before `since` does not count."""
        if (cause := self._stall(stall_timeout, stall_timeout, since=since)) is not None:
            return cause
        # Judged when a request was given up, not when the next one comes: that one may be the first to be answered.
        given_up = 0.0 if self._cells is None else self._cells[_GIVEN_UP]
        if given_up > stall_timeout:
            return f"the engine has worked {given_up:.0f} s on requests that were given up, and made no progress"
        return None

    def _stall(self, quiet_limit: float, stall_timeout: float, *, since: float = 0.0) -> str | None:
        cells = self._mapped()
        if cells is None or cells[_PATIENCE] <= 0:
            return None
        now = self._clock()
        silent = now - max(cells[_PULSE], since)
        if silent > quiet_limit:
            return (
                f"the engine process has not run for {silent:.0f} s: it is stopped, or native code holds Python's lock"
            )
        if now - cells[_COMPUTING] < _COMPUTING_FOR:
            quiet_limit = stall_timeout * cells[_PATIENCE]
        quiet = now - max(cells[_PROGRESS], since)
        if quiet <= quiet_limit:
            return None
        activity, in_call = Activity(int(cells[_ACTIVITY])), now - cells[_SINCE]
        running = f"{int(cells[_RUNNING])} running"
        if activity is not Activity.IDLE and in_call >= _CALL_UNDER_WAY:
            return f"the engine has made no progress in {in_call:.0f} s of one {activity.name.lower()} ({running})"
        return f"the engine has made no progress for {quiet:.0f} s ({running})"

    def _mapped(self) -> memoryview[float] | None:
        if self._cells is None:
            try:
                descriptor = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                return None  # the supervisor is about to make it
            try:
                if os.fstat(descriptor).st_size >= _SIZE:
                    self._cells = _map(descriptor)
            finally:
                os.close(descriptor)
        return self._cells


def _group_cpu_seconds() -> float:
    """What the processes that the engine has started have used of the processor; 0 where there is no /proc, NaN if unknown."""
    own, group, ticks = os.getpid(), os.getpgrp(), 0
    if group != own or not os.path.isdir("/proc/self"):  # noqa: PTH112
        return 0.0
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:  # as where there is no file descriptor left
        return math.nan  # which is not more than anything
    for name in names:
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
