"""The engine loop: receive, admit, step, deliver. It owns the backend, and it alone calls it."""

from __future__ import annotations

import bisect
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Protocol

from backends.base import Backend
from lmi_handlers.engine.admission import Admission
from lmi_handlers.engine.messages import Abort, EngineMessage, Failed, Outputs, SequenceOutput, Submit, WorkerMessage
from lmi_handlers.errors import EngineDead, InvalidRequest, LMIError, QueueFull, RequestError, RequestFailed
from lmi_handlers.outputs import FinishReason, TokenOutput
from lmi_handlers.request import TokenRequest

_IDLE_WAIT = 0.2


class Worker(Protocol):
    """The web worker at the other end of a connection. `send` never blocks the loop."""

    def send(self, message: EngineMessage) -> None:
        """Queue a message for the worker; a worker that has gone is none of the loop's business."""


class Disconnected:
    """Put in the inbox when a worker's connection has ended."""


Inbox = queue.SimpleQueue[tuple[Worker, WorkerMessage | Disconnected]]


class _Request:
    """A submitted request: the sequences still to start, and those running."""

    def __init__(self, worker: Worker, submit: Submit, key: int) -> None:
        self.worker = worker
        self.number = submit.number
        self.request_id = submit.request_id
        self.priority = submit.priority
        self.arrived = time.monotonic()
        self.queue_time: float | None = None
        self.running: dict[str, int] = {}
        self.waiting = deque(self._sequences(submit, key))

    @staticmethod
    def _sequences(submit: Submit, key: int) -> Iterator[tuple[int, TokenRequest]]:
        params = submit.sampling_params
        for prompt_index, prompt in enumerate(submit.prompts):
            adapter = submit.adapters[prompt_index] if submit.adapters else None
            image_prompt = submit.image_prompts[prompt_index] if submit.image_prompts else None
            for sample in range(params.n):
                index = prompt_index * params.n + sample
                yield (
                    index,
                    TokenRequest(
                        request_id=f"{key}-{index}",
                        prompt_token_ids=prompt,
                        sampling_params=params.for_sample(sample),
                        adapter=adapter,
                        priority=submit.priority,
                        image_prompt=image_prompt,
                    ),
                )


class EngineLoop:
    """Multiplexes the requests of all workers onto one backend.

    A request waits until the admission policy takes it, the lowest `priority` first and of equal ones whoever came first;
    `job_queue_size` bounds how many may wait. Every submit ends in exactly one terminal message. `step_started` is the
    monotonic time at which the current step began, None between steps. `on_death` is called before the requests of an engine
    that has died are told.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        job_queue_size: int,
        inbox: Inbox,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._backend = backend
        self._on_death = on_death
        self._admission = admission
        self._job_queue_size = job_queue_size
        self._inbox = inbox
        self._waiting: deque[_Request] = deque()
        self._requests: dict[tuple[Worker, int], _Request] = {}
        self._sequences: dict[str, _Request] = {}
        self._waiting_sequences = 0
        self._submitted = 0
        self._stopping = False
        self._failing = threading.Lock()
        self.step_started: float | None = None

    def run(self) -> None:
        """Serve until stopped. An exception that leaves here is the engine's death; every request has been told by then."""
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
        """One round: take what has arrived, start what may start, step, hand out what is new."""
        self._admit()  # to the places that the last step has freed
        self._receive()
        self._admit()
        if self._sequences:
            self.step_started = time.monotonic()
            outputs = self._backend.step()
            self.step_started = None
            self._deliver(outputs)

    @property
    def running(self) -> int:
        """Sequences that the backend has; any thread may ask."""
        return len(self._sequences)

    @property
    def waiting(self) -> int:
        """Sequences that wait to start; any thread may ask.

        Each message that came during the step under way counts as one: nearly all of them are requests for one.
        """
        return self._waiting_sequences + self._inbox.qsize()

    def stop(self) -> None:
        """Leave `run` after the current step."""
        self._stopping = True

    def fail_all(self, error: LMIError) -> None:
        """Tell every waiting and running request that it has failed. For the loop's end, or when the loop is stuck."""
        with self._failing:  # whoever comes second goes on to end the process, and must not before the first is done
            self._on_death()
            requests = list(self._requests.values())
            self._requests.clear()  # and nothing else: the backend may be stuck, or of no more use
            for request in requests:
                self._tell(request, error)
            with contextlib.suppress(queue.Empty):  # those that came during the step that never returned
                while True:
                    worker, message = self._inbox.get_nowait()
                    if isinstance(message, Submit):
                        worker.send(_failed(message.number, error))

    def _receive(self) -> None:
        timeout = 0.0
        if not self._sequences:
            # Idle: sleep until something arrives, or until the batch at the head of the queue is due. The bound lets
            # `stop`, which other threads call, be noticed.
            timeout = _IDLE_WAIT
            if self._waiting:
                due = self._admission.wait(time.monotonic() - self._waiting[0].arrived)
                timeout = timeout if due is None else min(due, timeout)
        try:
            while True:
                worker, message = self._inbox.get(block=timeout > 0, timeout=timeout or None)
                timeout = 0.0
                self._handle(worker, message)
        except queue.Empty:
            pass

    def _handle(self, worker: Worker, message: WorkerMessage | Disconnected) -> None:
        if isinstance(message, Submit):
            self._submit(worker, message)
        elif isinstance(message, Abort):
            request = self._requests.get((worker, message.number))
            if request is not None:
                self._abort(request, message.index)
        else:
            for request in [request for (owner, _), request in self._requests.items() if owner is worker]:
                self._forget(request)

    def _submit(self, worker: Worker, submit: Submit) -> None:
        self._admit()  # what came in the same breath must not count as waiting while places are free
        if len(self._waiting) >= self._job_queue_size:
            error = QueueFull(
                f"{len(self._waiting)} requests are waiting already (job_queue_size={self._job_queue_size})"
            )
            worker.send(_failed(submit.number, error))
            return
        self._submitted += 1
        request = _Request(worker, submit, self._submitted)
        self._requests[worker, submit.number] = request
        bisect.insort(self._waiting, request, key=attrgetter("priority"))
        self._waiting_sequences += len(request.waiting)

    def _admit(self) -> None:
        while self._waiting:
            age = time.monotonic() - self._waiting[0].arrived
            running = len(self._sequences) - self._backend.num_preparing
            room = self._admission.room(waiting=self._waiting_sequences, oldest_wait=age, running=running)
            if room <= 0:
                return
            for _ in range(room):  # again after that: one that fails here takes no place
                if self._waiting:
                    self._start_next(self._waiting[0])

    def _start_next(self, request: _Request) -> None:
        """Hand the backend the next waiting sequence of the request at the queue's head."""
        index, sequence = request.waiting.popleft()
        self._waiting_sequences -= 1
        if not request.waiting:
            self._waiting.popleft()
        if request.queue_time is None:
            request.queue_time = time.monotonic() - request.arrived
        try:
            self._backend.add_request(sequence)
        except RequestError as error:
            self._fail(request, error)
        else:
            request.running[sequence.request_id] = index
            self._sequences[sequence.request_id] = request

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        by_worker: dict[Worker, list[SequenceOutput]] = {}
        failed: list[tuple[_Request, RequestError]] = []
        for output in outputs:
            request = self._sequences.get(output.request_id)
            if request is None:
                continue  # it failed with another sequence of its request
            if output.finish_reason is FinishReason.ERROR:
                self._forget(request)
                failed.append((request, _error_of(output)))
                continue
            index = request.running[output.request_id]
            by_worker.setdefault(request.worker, []).append(
                SequenceOutput(request.number, index, output, request.queue_time or 0.0)
            )
            if output.finish_reason is not None:
                del self._sequences[output.request_id], request.running[output.request_id]
                if not request.running and not request.waiting:
                    self._forget(request)
        for worker, batch in by_worker.items():
            worker.send(Outputs(batch))
        for request, error in failed:  # a failure is the last word on its request
            self._tell(request, error)

    def _abort(self, request: _Request, index: int | None) -> None:
        """Drop one sequence, or with `index` None all of them."""
        if index is not None:
            for request_id in [key for key, running in request.running.items() if running == index]:
                self._backend.abort(request_id)
                del self._sequences[request_id], request.running[request_id]
            left = deque(item for item in request.waiting if item[0] != index)
            self._waiting_sequences -= len(request.waiting) - len(left)
            if request.waiting and not left:
                self._waiting.remove(request)
            request.waiting = left
        if index is None or (not request.running and not request.waiting):
            self._forget(request)

    def _fail(self, request: _Request, error: LMIError) -> None:
        self._forget(request)
        self._tell(request, error)

    @staticmethod
    def _tell(request: _Request, error: LMIError) -> None:
        request.worker.send(_failed(request.number, error))

    def _forget(self, request: _Request) -> None:
        for request_id in request.running:
            self._backend.abort(request_id)
            del self._sequences[request_id]
        request.running.clear()
        if request.waiting:
            self._waiting_sequences -= len(request.waiting)
            request.waiting.clear()
            self._waiting.remove(request)
        self._requests.pop((request.worker, request.number), None)


def _error_of(output: TokenOutput) -> RequestError:
    cause = output.error or "the engine gave no cause"
    return InvalidRequest(cause, field=output.invalid_field) if output.invalid_request else RequestFailed(cause)


def _failed(number: int, error: LMIError) -> Failed:
    kind = type(error).__name__
    if isinstance(error, InvalidRequest):
        return Failed(number, kind, error.message, error.field)
    return Failed(number, kind, str(error))
