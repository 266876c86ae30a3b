"""The engine loop: receive, admit, step, deliver. Only the loop calls the backend."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from backends.base import Backend
from lmi_handlers.core.errors import (
    EngineDead,
    InvalidRequest,
    LMIError,
    QueueFull,
    RequestError,
    RequestFailed,
    UnsupportedFeature,
)
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.engine.admission import Admission
from lmi_handlers.engine.heartbeat import Activity, Heartbeat
from lmi_handlers.engine.job_queue import Job, JobQueue
from lmi_handlers.engine.messages import (
    Abort,
    EngineMessage,
    LoadAdapter,
    Outputs,
    SequenceOutput,
    Submit,
    UnloadAdapter,
    Worker,
    WorkerMessage,
    failed,
)
from lmi_handlers.engine.shared_answers import SharedAnswers

_IDLE_WAIT = 0.2

_LONGEST_START = 0.25
"""Seconds in a turn after which no more sequences are started while others wait for their next token.

Some engines read the lists of a request for each of its sequences. That can take a second for twenty of them.
"""


class Disconnected:
    """Put in the inbox when a worker's connection has ended."""


class LoopCall:
    """Put in the inbox to run `action` between two steps. `done` gets what it returns or raises."""

    def __init__(self, action: Callable[[EngineLoop], Any], done: Future[Any]) -> None:
        self.action = action
        self.done = done


class _Nobody:
    """Sends nothing."""

    def send(self, message: EngineMessage) -> None:
        """Drop the message."""


NOBODY = _Nobody()
"""Stands for the worker of messages that no worker has sent."""

Inbox = queue.SimpleQueue[tuple[Worker, WorkerMessage | Disconnected | LoopCall]]

ChangeAdapter = Callable[[Worker, LoadAdapter | UnloadAdapter], None]
"""Starts to load or unload an adapter. The worker is told when it is done. Never blocks."""


class EngineLoop:
    """Multiplexes the requests of all workers onto one backend.

    A sequence waits in the job queue until the admission policy has a place for it. Every submitted request ends in
    exactly one terminal message, unless it is aborted. `heartbeat` shows other processes what the loop is doing. If the
    engine dies, `on_death` is called before its requests are failed. `change_adapter` gets the messages about adapters.
    An answer with a `join_key` waits `retry_grace` seconds for a client that comes back.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        job_queue_size: int,
        inbox: Inbox,
        on_death: Callable[[], None] = lambda: None,
        heartbeat: Heartbeat | None = None,
        change_adapter: ChangeAdapter | None = None,
        retry_grace: float = 0.0,
    ) -> None:
        self._backend = backend
        self._change_adapter = change_adapter or _refuse
        self._heartbeat = heartbeat or Heartbeat()
        self._on_death = on_death
        self._admission = admission
        self._inbox = inbox
        self._queue = JobQueue[Worker](job_queue_size, takes_turns=admission.takes_turns)
        self._jobs: dict[tuple[Worker, int], Job[Worker]] = {}
        self._sequences: dict[str, Job[Worker]] = {}
        self._shared = SharedAnswers(retry_grace, self._handle)
        self._submitted = 0
        self._share = 0.0
        self._start_until = math.inf
        self.busy_time = 0.0
        """Seconds that the backend's steps have taken. Any thread may read it."""
        self._stopping = False
        self._failing = threading.Lock()

    def run(self) -> None:
        """Serve until stopped. Any exception means that the engine is dead; all requests have been failed by then."""
        try:
            while not self._stopping:
                self.turn()
        except EngineDead as error:
            self.fail_all(error)
            raise
        except Exception as error:
            self.fail_all(EngineDead(f"the engine died: {type(error).__name__}: {error}"))
            raise

    def turn(self) -> None:
        """Do one round: receive messages, start sequences, step the backend, deliver outputs."""
        now = time.monotonic()
        self._start_until = now + _LONGEST_START if self._admission.takes_turns else math.inf
        self._shared.expire(now)
        self._admit()  # fills the places that the last step has freed
        self._receive()
        self._admit()
        if self._sequences:
            self._heartbeat.enter(Activity.STEP, len(self._sequences))
            began = time.monotonic()
            outputs = self._backend.step()
            self._spend(time.monotonic() - began)
            if outputs:
                self._heartbeat.progress()
            self._deliver(outputs)

    @property
    def running(self) -> int:
        """Number of sequences in the backend. Any thread may read it."""
        return len(self._sequences)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait to start. Any thread may read it.

        Each message that arrived during the current step counts as one, as nearly all of them are requests for one.
        """
        return self._queue.sequences + self._inbox.qsize()

    @property
    def shared_tokens(self) -> int:
        """Number of tokens that were generated for requests with a `join_key`. Any thread may read it."""
        return self._shared.generated

    def adapters_in_use(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the adapters of requests that run, and of those of which nothing runs yet. Any thread may call it."""
        running, waiting = set[str](), set[str]()
        for job in list(self._jobs.values()):
            (running if job.running else waiting).update(job.adapters)
        return tuple(sorted(running)), tuple(sorted(waiting))

    def uses_adapter(self, name: str) -> bool:
        """Tell whether a request that waits or runs needs an adapter. Only for a `LoopCall`."""
        return any(job.uses_adapter(name) for job in self._jobs.values())

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stopping = True

    def fail_all(self, error: LMIError) -> None:
        """Fail every waiting and running request. Called when the loop ends, or from another thread if it is stuck."""
        with self._failing:  # the second caller would end the process, so it must wait for the first
            self._on_death()
            jobs = list(self._jobs.values())
            self._jobs.clear()  # do not call the backend: it may be stuck or dead
            for job in jobs:
                self._tell(job, error)
            with contextlib.suppress(queue.Empty):  # requests that arrived during the last step
                while True:
                    worker, message = self._inbox.get_nowait()
                    if isinstance(message, Submit):
                        worker.send(failed(message.number, error))

    def _receive(self) -> None:
        timeout = 0.0
        if not self._sequences:
            self._heartbeat.rest()
            # Idle: sleep until a message arrives or the next dynamic batch is due. The upper limit lets `stop`, called
            # from another thread, take effect.
            timeout = _IDLE_WAIT
            if self._queue:
                due = self._admission.wait(time.monotonic() - self._queue.oldest_arrival)
                timeout = timeout if due is None else min(due, timeout)
        try:
            while True:
                worker, message = self._inbox.get(block=timeout > 0, timeout=timeout or None)
                timeout = 0.0
                self._handle(worker, message)
        except queue.Empty:
            if not self._sequences:
                self._backend.on_idle()

    def _handle(self, worker: Worker, message: WorkerMessage | Disconnected | LoopCall) -> None:
        if isinstance(message, Submit):
            if message.join_key is None:
                self._submit(worker, message)
            else:
                self._shared.submit(worker, message, message.join_key)
        elif isinstance(message, Abort):
            job = self._jobs.get((worker, message.number))
            if job is not None:
                self._abort(job, message.index)
            else:
                self._shared.abort(worker, message)
        elif isinstance(message, LoadAdapter | UnloadAdapter):
            self._change_adapter(worker, message)
        elif isinstance(message, LoopCall):
            self._call(message)
        else:
            for job in [job for (owner, _), job in self._jobs.items() if owner is worker]:
                self._forget(job)
            self._shared.disconnect(worker)

    def _call(self, call: LoopCall) -> None:
        try:
            call.done.set_result(call.action(self))
        except Exception as error:  # noqa: BLE001  whoever waits for it handles it; no request is affected
            call.done.set_exception(error)

    def _submit(self, worker: Worker, submit: Submit) -> None:
        self._admit()  # requests that have just arrived must not fill the queue while places are free
        job = Job(worker, submit, self._submitted + 1, arrived=time.monotonic())
        try:
            self._add(job)
        except QueueFull as error:
            worker.send(failed(submit.number, error))
            return
        self._submitted += 1
        self._jobs[worker, submit.number] = job

    def _add(self, job: Job[Worker]) -> None:
        """Add a job to the queue. What goes on without a client gives way to it. Raises `QueueFull`."""
        while True:
            try:
                return self._queue.add(job)
            except QueueFull:  # noqa: PERF203  each round makes room
                if not self._shared.give_way():
                    raise
                self._admit()

    def _admit(self) -> None:
        while self._queue:
            age = time.monotonic() - self._queue.oldest_arrival
            running = len(self._sequences) - self._backend.num_preparing
            room = self._admission.room(waiting=self._queue.sequences, oldest_wait=age, running=running)
            if room <= 0:
                return
            for _ in range(room):  # checked again afterwards: a sequence that fails here takes no place
                if self._sequences and time.monotonic() >= self._start_until:
                    return
                if self._queue:
                    self._start_next()

    def _start_next(self) -> None:
        """Start the sequence whose turn it is."""
        now = time.monotonic()
        job, index = self._queue.take(now)
        if job.queue_time is None:
            job.queue_time = now - job.arrived
        sequence = job.sequence(index)
        try:
            self._heartbeat.enter(Activity.ADD_REQUEST, len(self._sequences))
            self._backend.add_request(sequence)
        except RequestError as error:
            self._fail(job, error)
        else:
            job.running[sequence.request_id] = index
            self._sequences[sequence.request_id] = job
            job.meter.engine_time -= self._share

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        by_worker: dict[Worker, list[SequenceOutput]] = {}
        failed: list[tuple[Job[Worker], RequestError]] = []
        for output in outputs:
            job = self._sequences.get(output.request_id)
            if job is None:
                continue  # another sequence of its request has failed, and ended it
            if output.finish_reason is FinishReason.ERROR:
                self._forget(job)
                failed.append((job, _error_of(output)))
                continue
            index, meter = job.running[output.request_id], job.meter
            engine_time = meter.engine_time + len(job.running) * self._share
            by_worker.setdefault(job.worker, []).append(
                SequenceOutput(job.number, index, output, job.queue_time or 0.0, engine_time, meter.kv_block_time)
            )
            if output.finish_reason is not None:
                self._leave(job, output.request_id)
                if not job.running and not job.waiting:
                    self._forget(job)
        for worker, batch in self._shared.passed_on(by_worker).items():
            worker.send(Outputs(batch))
        for job, error in failed:  # after the outputs: a failure is the last message of its request
            self._tell(job, error)

    def _spend(self, seconds: float) -> None:
        """Divide the time of a step equally among the sequences, unless the backend does so.

        `_share` is the share of a sequence that has been there since the loop began. So nothing has to be done for each
        sequence: one that starts owes what it has missed, until it leaves.
        """
        self.busy_time += seconds
        if not self._backend.measures_steps:
            self._share += seconds / len(self._sequences)

    def _leave(self, job: Job[Worker], request_id: str) -> None:
        """Forget a sequence that has ended."""
        del self._sequences[request_id], job.running[request_id]
        job.meter.engine_time += self._share

    def _abort(self, job: Job[Worker], index: int | None) -> None:
        """Abort one sequence, or all of them if `index` is None."""
        if index is not None:
            for request_id in [key for key, running in job.running.items() if running == index]:
                self._abort_sequence(request_id)
                self._leave(job, request_id)
            self._queue.discard(job, index)
        if index is None or (not job.running and not job.waiting):
            self._forget(job)

    def _abort_sequence(self, request_id: str) -> None:
        self._heartbeat.enter(Activity.ABORT, len(self._sequences))
        self._backend.abort(request_id)

    def _fail(self, job: Job[Worker], error: LMIError) -> None:
        self._forget(job)
        self._tell(job, error)

    @staticmethod
    def _tell(job: Job[Worker], error: LMIError) -> None:
        job.worker.send(failed(job.number, error))

    def _forget(self, job: Job[Worker]) -> None:
        for request_id in list(job.running):
            self._abort_sequence(request_id)
            self._leave(job, request_id)
        self._queue.discard(job)
        self._jobs.pop((job.worker, job.number), None)


def _error_of(output: TokenOutput) -> RequestError:
    cause = output.error or "the engine gave no cause"
    if output.invalid_request:
        return InvalidRequest(cause, field=output.invalid_field)
    return QueueFull(cause) if output.overloaded else RequestFailed(cause)


def _refuse(worker: Worker, message: LoadAdapter | UnloadAdapter) -> None:
    worker.send(failed(message.number, UnsupportedFeature("this engine loads no adapters while it serves")))
