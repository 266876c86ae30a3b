"""Shows other processes whether the engine is alive: a few numbers in a file that each process maps into its memory.

The engine process writes the numbers, the supervisor and the web workers read them. Nothing is sent and nobody has to
answer. A stopped engine is therefore recognised, and so is one in which native code holds the GIL.
"""

from __future__ import annotations

import contextlib
import enum
import math
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.redaction import redacted

PULSE_INTERVAL = 0.5
SUSPECT_SECONDS = 5.0
"""After this many seconds without a sign of life, `/ping` answers 503 until there is one again."""

CPU_PATIENCE = 10.0
"""An engine that is computing on the CPU may be silent for this many times `option.stall_timeout`."""

_CALL_UNDER_WAY = 1.0
"""Seconds. A shorter backend call is polling, not work. Given-up work that took less time is ignored."""

_BEAT_COUNTS = 2.0
"""Each pulse vouches for this many seconds of given-up work. There are no pulses while this process is paused."""

_COMPUTING_FOR = 3.0
"""Seconds for which observed CPU use counts as proof that something is being computed."""

_LEAST_USE = 0.01
"""Share of a core below which a thread does not even try to compute."""


class Activity(enum.IntEnum):
    """The activity of the engine loop: waiting for requests, or one of its calls into the backend."""

    IDLE = 0
    STEP = 1
    ADD_REQUEST = 2
    ABORT = 3


# Plain integers: indexing or comparing with enum members costs more than everything else that a step does here.
_IDLE, _STEP = Activity.IDLE.value, Activity.STEP.value
_PHASES = tuple(LoadPhase)
_CELLS = 10
_PULSE, _PROGRESS, _COMPUTING, _GIVEN_UP, _ACTIVITY, _SINCE, _RUNNING, _PATIENCE, _PHASE, _ARRIVED = range(_CELLS)
_SIZE = 8 * _CELLS
_CAUSE_SIZE = 1000
"""Bytes after the numbers, for why the engine has ended: UTF-8, with zeros after it."""


def explain(path: Path, cause: str) -> None:
    """Say in the heartbeat file why an engine has ended: `/ping` says it, too, so without secrets.

    The bytes are there already, so a full disk does not matter.
    """
    text = redacted(cause).encode(errors="replace")[:_CAUSE_SIZE]
    with contextlib.suppress(OSError), path.open("r+b") as file:
        os.pwrite(file.fileno(), text.ljust(_CAUSE_SIZE, b"\0"), _SIZE)


def explanation(path: Path) -> str:
    """Return what `explain` has said of the latest engine, or ""."""
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), _CAUSE_SIZE, _SIZE).rstrip(b"\0").decode(errors="ignore")
    except OSError:
        return ""


def _map(descriptor: int) -> memoryview[float]:
    """Map the file as aligned doubles: nobody can read a half-written value."""
    return memoryview(mmap.mmap(descriptor, _SIZE)).cast("d")


class Heartbeat:
    """The engine's side. The loop's thread calls its methods; other threads may call `beat`, `compare` and `progress`.

    Progress is an output, or a part of a prompt that has been computed. An idle engine needs no progress. A call that
    starts or aborts a sequence counts as progress once it returns. Time spent on requests that were given up without
    progress adds up. Otherwise, an engine whose requests all time out would get a fresh start with each of them.
    """

    def __init__(self, descriptor: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, the numbers are private to this process."""
        self._cells = _map(descriptor)
        self._clock = clock
        self._lock = threading.Lock()  # guards what `progress` changes
        self._beats = 0
        self._work = 0
        self._cpu_seconds: Callable[[], float] = time.process_time
        self._cpu = (0.0, math.inf, math.inf)

    @classmethod
    def create(cls, path: Path, clock: Callable[[], float] = time.monotonic) -> Heartbeat:
        """Open or create the file, and erase what a dead engine has left in it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, bytes(_SIZE + _CAUSE_SIZE), 0)
            return cls(descriptor, clock)
        finally:
            os.close(descriptor)

    def load(self, phase: LoadPhase) -> None:
        """Record what an engine that does not accept requests yet is doing."""
        self._cells[_PHASE] = _PHASES.index(phase)

    def arrive(self) -> None:
        """Record that a part of a download or the resources of a cluster have arrived: the time for loading starts again."""
        self._cells[_ARRIVED] = self._clock()

    @property
    def last_arrival(self) -> float:
        """When a part of a download arrived last, on the monotonic clock. 0.0 if none has."""
        return self._cells[_ARRIVED]

    def start(self, *, patience: float) -> None:
        """Record that the engine accepts requests, and start to monitor it. The thread that runs the loop calls it."""
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS
            self._cpu_seconds = _ComputingClock().seconds
        now = self._clock()
        cells = self._cells
        cells[_PULSE] = cells[_PROGRESS] = now
        cells[_PATIENCE] = patience

    def enter(self, activity: Activity, running: int) -> None:
        """Record that the loop calls into the backend, which has `running` sequences."""
        now = self._clock()
        cells = self._cells
        if cells[_ACTIVITY] != _STEP:
            self._settle(now)
        cells[_RUNNING] = running
        cells[_SINCE] = now
        cells[_ACTIVITY] = activity

    def progress(self) -> None:
        with self._lock:
            self._cells[_PROGRESS] = self._clock()
            self._cells[_GIVEN_UP] = 0.0
            self._beats = 0

    def compare(self, work: int) -> None:
        """Record progress if `work`, the backend's own counter, has changed since the last call."""
        if work != self._work:
            self._work = work
            self.progress()

    def rest(self) -> None:
        """Record that the backend has no sequences."""
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
        """Exclude time that was idle, or was spent starting or aborting sequences, from the time without progress."""
        cells = self._cells
        with self._lock:
            if cells[_ACTIVITY] == _IDLE:
                cells[_PROGRESS] = now
                self._beats = 0
            elif cells[_ACTIVITY] != _STEP:
                cells[_PROGRESS] = min(now, cells[_PROGRESS] + now - cells[_SINCE])

    def beat(self) -> None:
        """Record that the threads of this process run, and whether the current call uses the CPU, or is waiting for it."""
        cells = self._cells
        self._beats += 1
        now = self._clock()
        cells[_PULSE] = now
        before, own, others = self._cpu
        if cells[_ACTIVITY] == _IDLE or now - cells[_PROGRESS] < _CALL_UNDER_WAY:
            self._cpu = now, math.inf, math.inf  # no baseline for the next call
            return
        least, in_call = _LEAST_USE * (now - before), now - cells[_SINCE] >= _CALL_UNDER_WAY
        own_now, others_now = self._cpu_seconds(), math.inf
        computing = in_call and own_now - own > least
        if not computing:  # reading all of /proc takes seconds while the loop's thread computes in Python
            others_now = _group_cpu_seconds()
            computing = others_now - others > least
        self._cpu = now, own_now, others_now
        if computing:
            cells[_COMPUTING] = now


class _ComputingClock:
    """Measures for how long the thread that makes it has run, or has been kept from that by others.

    On a busy machine, those of a low priority, such as a shadow's, get less than `_LEAST_USE`.
    """

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._kept = 0.0

    def seconds(self) -> float:
        """Return the seconds until now. Without a free file descriptor or this file, only those of running are added."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:  # noqa: PTH123
            self._kept = int(file.read().split()[1]) / 1e9
        return time.clock_gettime(self._clock) + self._kept


class HeartbeatReader:
    """The side of the supervisor and the web workers. An engine that has not loaded never counts as stalled.

    `title` is what messages call it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, *, title: str = "engine") -> None:
        self._path = path
        self._clock = clock
        self._title = title
        self._cells: memoryview[float] | None = None

    @property
    def serving(self) -> bool:
        """True if the engine has loaded."""
        cells = self._mapped()
        return cells is not None and cells[_PATIENCE] > 0

    @property
    def cause(self) -> str:
        """The cause of the latest engine's end, or "" if it runs."""
        return explanation(self._path)

    @property
    def running(self) -> int:
        """The number of sequences in the engine's batch at its latest step."""
        cells = self._mapped()
        return 0 if cells is None or cells[_ACTIVITY] == _IDLE else int(cells[_RUNNING])

    @property
    def load_phase(self) -> LoadPhase:
        """The phase of loading. If the engine has ended, its last phase."""
        cells = self._mapped()
        return LoadPhase.STARTING if cells is None else _PHASES[int(cells[_PHASE])]

    @property
    def last_arrival(self) -> float:
        """When a part of a download arrived last, on the monotonic clock. 0.0 if none has."""
        cells = self._mapped()
        return 0.0 if cells is None else cells[_ARRIVED]

    def suspicion(self, stall_timeout: float) -> str | None:
        """Return why the engine should get no new requests for now, or None if all is well."""
        return self._stall(min(SUSPECT_SECONDS, stall_timeout / 2), stall_timeout)

    def stall(self, stall_timeout: float, *, since: float) -> str | None:
        """Return why the engine must be killed, or None. Silence before `since` does not count."""
        if (cause := self._stall(stall_timeout, stall_timeout, since=since)) is not None:
            return cause
        # Work counts only once its requests are given up. Those that are still running may yet be answered.
        given_up = 0.0 if self._cells is None else self._cells[_GIVEN_UP]
        if given_up > stall_timeout:
            return f"the {self._title} has worked {given_up:.0f} s on requests that were given up, and made no progress"
        return None

    def _stall(self, quiet_limit: float, stall_timeout: float, *, since: float = 0.0) -> str | None:
        cells = self._mapped()
        if cells is None or cells[_PATIENCE] <= 0:
            return None
        now = self._clock()
        silent = now - max(cells[_PULSE], since)
        if silent > quiet_limit:
            return f"the {self._title} process has not run for {silent:.0f} s: it is stopped, or native code holds Python's lock"
        if now - cells[_COMPUTING] < _COMPUTING_FOR:
            quiet_limit = stall_timeout * cells[_PATIENCE]
        quiet = now - max(cells[_PROGRESS], since)
        if quiet <= quiet_limit:
            return None
        activity, in_call = Activity(int(cells[_ACTIVITY])), now - cells[_SINCE]
        running = f"{int(cells[_RUNNING])} running"
        if activity is not Activity.IDLE and in_call >= _CALL_UNDER_WAY:
            return (
                f"the {self._title} has made no progress in {in_call:.0f} s of one {activity.name.lower()} ({running})"
            )
        return f"the {self._title} has made no progress for {quiet:.0f} s ({running})"

    def _mapped(self) -> memoryview[float] | None:
        if self._cells is None:
            try:
                descriptor = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                return None  # the supervisor has not created it yet
            try:
                if os.fstat(descriptor).st_size >= _SIZE:
                    self._cells = _map(descriptor)
            finally:
                os.close(descriptor)
        return self._cells


def _group_cpu_seconds() -> float:
    """Return the CPU time of the other processes in the engine's group. 0 without a group or /proc, NaN if unknown."""
    own, group, ticks = os.getpid(), os.getpgrp(), 0
    if group != own or not os.path.isdir("/proc/self"):  # noqa: PTH112
        return 0.0
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:  # for example because no file descriptor is left
        return math.nan  # any comparison with it is false
    for name in names:
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # the process has just ended
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
