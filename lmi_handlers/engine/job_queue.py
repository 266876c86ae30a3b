"""What waits for a place in the batch: which sequence starts next, and how much may wait at all."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Generic, TypeVar

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.engine.messages import Submit

SECONDS_PER_PRIORITY = 5.0
"""One step of `priority` is worth as much as having waited this much longer."""

MAX_HEAD_START = 30.0
"""Seconds that `priority` can gain or cost a request. Half of the 60 seconds after which SageMaker gives up on one."""


Worker = TypeVar("Worker")


class Job(Generic[Worker]):
    """A submitted request: the indices of its sequences that have yet to start, and those running by the backend's id."""

    def __init__(self, worker: Worker, submit: Submit, key: int, *, arrived: float) -> None:
        self.worker = worker
        self.number = submit.number
        self.arrived = arrived
        self.queue_time: float | None = None
        self.running: dict[str, int] = {}
        self.waiting = deque(range(len(submit.prompts) * submit.sampling_params.n))
        self.head_start = min(max(-submit.priority * SECONDS_PER_PRIORITY, -MAX_HEAD_START), MAX_HEAD_START)
        self._submit = submit
        self._key = key

    def sequence(self, index: int) -> TokenRequest:
        """Return sequence `index` as a backend takes it: built when it starts, as a request may have hundreds."""
        submit = self._submit
        prompt, sample = divmod(index, submit.sampling_params.n)
        return TokenRequest(
            request_id=f"{self._key}-{index}",
            prompt_token_ids=submit.prompts[prompt],
            sampling_params=submit.sampling_params.for_sample(sample),
            adapter=submit.adapters[prompt] if submit.adapters else None,
            priority=submit.priority,
            image_prompt=submit.image_prompts[prompt] if submit.image_prompts else None,
        )


class JobQueue(Generic[Worker]):
    """The jobs that have sequences waiting, in the order in which they are served.

    Where `takes_turns` is set, a job goes to the back of the queue each time one of its sequences starts. A request with
    hundreds of sequences thus has every place while it is alone, and one turn in a round when others wait. Without turns, all
    sequences of a job start before those of the next.

    A job's place is decided by how long it has waited, since it arrived or since its last turn, plus the head start that its
    priority is worth. So a lower `priority` is served sooner, but every request gets to the front: at the latest
    `2 * MAX_HEAD_START` seconds after it would have without priorities.

    `size` bounds the waiting sequences, but a request that is large must not lock out those that are small: see `add`.
    """

    def __init__(self, size: int, *, takes_turns: bool) -> None:
        self._size = size
        self._takes_turns = takes_turns
        self._jobs: list[tuple[float, Job[Worker]]] = []  # sorted by the moment since which each counts as waiting
        self._arrivals: dict[Job[Worker], None] = {}  # the same jobs, in order of arrival
        self.sequences = 0
        """How many sequences wait; other threads read it."""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    @property
    def oldest_arrival(self) -> float:
        """When the first of those that still wait arrived."""
        return next(iter(self._arrivals)).arrived

    def add(self, job: Job[Worker]) -> None:
        """Take in a new job. Raises `QueueFull`.

        It is taken where all waiting sequences fit into the queue. Where they do not, it is taken still if it asks for no more
        than its share, which is the queue's size divided by the number of waiting jobs; so what one large request leaves to
        others does not depend on how large it is. A job that no other waits beside is always taken: it could never fit better.
        """
        asked, others = len(job.waiting), len(self._jobs)
        if others and self.sequences + asked > self._size and asked > self._size // (others + 1):
            raise QueueFull(self._refusal(asked))
        self._arrivals[job] = None
        self.sequences += asked
        self._insert(job, job.arrived)

    def take(self, now: float) -> tuple[Job[Worker], int]:
        """Take out the sequence that starts now: its job, and its index there."""
        _, job = self._jobs[0]
        index = job.waiting.popleft()
        self.sequences -= 1
        if not job.waiting:
            self._remove(job)
        elif self._takes_turns:
            del self._jobs[0]
            self._insert(job, now)
        return job, index

    def discard(self, job: Job[Worker], index: int | None = None) -> None:
        """Drop sequence `index` of a job, with None all of them; does nothing for those that do not wait."""
        kept = deque(waiting for waiting in job.waiting if waiting != index and index is not None)
        if len(kept) < len(job.waiting):
            self.sequences -= len(job.waiting) - len(kept)
            job.waiting = kept
            if not kept:
                self._remove(job)

    def _insert(self, job: Job[Worker], since: float) -> None:
        bisect.insort(self._jobs, (since - job.head_start, job), key=_moment)

    def _remove(self, job: Job[Worker]) -> None:
        del self._arrivals[job]
        self._jobs = [entry for entry in self._jobs if entry[1] is not job]

    def _refusal(self, asked: int) -> str:
        jobs = len(self._jobs)
        waiting = f"{jobs} requests are waiting already" if jobs > 1 else "1 request is waiting already"
        if self.sequences == jobs and asked == 1:
            return f"{waiting} (job_queue_size={self._size})"
        return f"{waiting}, with {self.sequences} sequences; {asked} more do not fit in the queue (job_queue_size={self._size})"


def _moment(entry: tuple[float, Job[Worker]]) -> float:
    return entry[0]
