"""Sequences that wait for a place in the batch: which one starts next, and how many may wait."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Generic, TypeVar

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.core.meter import Meter
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.engine.messages import Submit

SECONDS_PER_PRIORITY = 5.0
"""Lowering `priority` by one is worth this much extra waiting time."""

MAX_HEAD_START = 30.0
"""Maximum seconds that `priority` can gain or cost a request: half of SageMaker's limit of 60 s for a request."""


WorkerT = TypeVar("WorkerT")


class Job(Generic[WorkerT]):
    """A submitted request.

    `waiting` has the indices of the sequences that have not started yet. `running` maps the backend's ids of running
    sequences to their indices. `meter` is what they have used of the engine.
    """

    def __init__(self, worker: WorkerT, submit: Submit, key: int, *, arrived: float) -> None:
        self.worker = worker
        self.number = submit.number
        self.arrived = arrived
        self.queue_time: float | None = None
        self.running: dict[str, int] = {}
        self.waiting = deque(range(len(submit.prompts) * submit.sampling_params.n))
        self.head_start = min(max(-submit.priority * SECONDS_PER_PRIORITY, -MAX_HEAD_START), MAX_HEAD_START)
        self.adapters = frozenset(prompt.adapter for prompt in submit.prompts if prompt.adapter is not None)
        self.meter = Meter()
        self._submit = submit
        self._key = key

    def uses_adapter(self, name: str) -> bool:
        """Tell whether any of its prompts needs this adapter."""
        return name in self.adapters

    def sequence(self, index: int) -> TokenRequest:
        """Return sequence `index` for the backend. Built only when it starts, because a request may have hundreds."""
        submit = self._submit
        prompt, sample = divmod(index, submit.sampling_params.n)
        return TokenRequest(
            request_id=f"{self._key}-{index}",
            prompt=submit.prompts[prompt],
            sampling_params=submit.sampling_params.for_sample(sample),
            priority=submit.priority,
            pooling_params=submit.pooling_params,
            generated=submit.generated,
            meter=self.meter,
        )


class JobQueue(Generic[WorkerT]):
    """The jobs that have waiting sequences, in the order in which they are served.

    With `takes_turns`, a job goes to the back of the queue each time one of its sequences starts. A request with
    hundreds of sequences can then use every place while it is alone, but gets one turn per round while others wait.
    Without turns, a job starts all its sequences before the next job starts any.

    Jobs are ordered by how long they have waited, since they arrived or since their last turn, plus the head start that
    their priority is worth. A lower `priority` is therefore served sooner, but every request is served eventually, at
    most `2 * MAX_HEAD_START` seconds later than without priorities.

    `size` limits the number of waiting sequences, but large requests must not lock out small ones: see `add`.
    """

    def __init__(self, size: int, *, takes_turns: bool) -> None:
        self._size = size
        self._takes_turns = takes_turns
        self._jobs: list[tuple[float, Job[WorkerT]]] = []  # sorted by the time since which each counts as waiting
        self._arrivals: dict[Job[WorkerT], None] = {}  # the same jobs, as a set in order of arrival
        self.sequences = 0
        """Number of waiting sequences. Other threads read it."""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    @property
    def oldest_arrival(self) -> float:
        """Arrival time of the oldest job that still waits."""
        return next(iter(self._arrivals)).arrived

    def add(self, job: Job[WorkerT]) -> None:
        """Add a job. Raises `QueueFull`.

        A job is accepted if all waiting sequences then fit in the queue. If they do not fit, it is still accepted if it
        asks for no more than its share: the queue's size divided by the number of waiting jobs, itself included. What a
        large request leaves to others therefore does not depend on how large it is. If no other job waits, a job is
        always accepted: it could never fit better.
        """
        asked, others = len(job.waiting), len(self._jobs)
        if others and self.sequences + asked > self._size and asked > self._size // (others + 1):
            raise QueueFull(self._refusal(asked))
        self._arrivals[job] = None
        self.sequences += asked
        self._insert(job, job.arrived)

    def take(self, now: float) -> tuple[Job[WorkerT], int]:
        """Remove the sequence that starts next, and return its job and its index in the job."""
        _, job = self._jobs[0]
        index = job.waiting.popleft()
        self.sequences -= 1
        if not job.waiting:
            self._remove(job)
        elif self._takes_turns:
            del self._jobs[0]
            self._insert(job, now)
        return job, index

    def discard(self, job: Job[WorkerT], index: int | None = None) -> None:
        """Remove sequence `index` of a job, or all if it is None. Sequences that are not waiting are ignored."""
        kept = deque(waiting for waiting in job.waiting if waiting != index and index is not None)
        if len(kept) < len(job.waiting):
            self.sequences -= len(job.waiting) - len(kept)
            job.waiting = kept
            if not kept:
                self._remove(job)

    def _insert(self, job: Job[WorkerT], since: float) -> None:
        bisect.insort(self._jobs, (since - job.head_start, job), key=_moment)

    def _remove(self, job: Job[WorkerT]) -> None:
        del self._arrivals[job]
        self._jobs = [entry for entry in self._jobs if entry[1] is not job]

    def _refusal(self, asked: int) -> str:
        jobs = len(self._jobs)
        waiting = f"{jobs} requests are waiting already" if jobs > 1 else "1 request is waiting already"
        if self.sequences == jobs and asked == 1:
            return f"{waiting} (job_queue_size={self._size})"
        return f"{waiting}, with {self.sequences} sequences; {asked} more do not fit in the queue (job_queue_size={self._size})"


def _moment(entry: tuple[float, Job[WorkerT]]) -> float:
    return entry[0]
