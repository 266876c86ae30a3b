"""The web worker's view of the engine: its state, and one `Generation` for each request in flight.

Plain threads, queues and sockets, which gevent replaces by its own where the worker is a gevent worker.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lmi_handlers.core import errors
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    LMIError,
)
from lmi_handlers.core.request import ImagePrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.arrivals import Arrivals
from lmi_handlers.engine.channel import Channel, worker_end
from lmi_handlers.engine.heartbeat import HeartbeatReader
from lmi_handlers.engine.messages import (
    Abort,
    EngineInfo,
    EngineMessage,
    Failed,
    Outputs,
    Ready,
    SequenceOutput,
    Submit,
    WorkerMessage,
)
from lmi_handlers.engine.sender import Sender
from lmi_handlers.engine.settings import heartbeat_path

logger = logging.getLogger(__name__)

_RECONNECT_INTERVAL = 0.1
_LONGEST_RECONNECT_INTERVAL = 10.0
_WATCH_INTERVAL = 0.1


class EngineState(enum.Enum):
    """STARTING also covers a restart; DRAINING is this worker's own shutdown.

    STALLED is an engine that shows no sign of life at the moment: it may come back, or is ended by its supervisor.
    """

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"


class Generation:
    """The outputs of one submitted request, as they come.

    Iterating yields lists of outputs, everything that has arrived since the last time, and ends when each of the
    request's sequences has finished or was aborted. Raises the error that ended the request: the engine's,
    `DeadlineExceeded` or `ClientDisconnected`. Leaving the `with` block before the end aborts what still runs.
    `failure` is what the client's watch has ended it with, even if nobody iterates, until that is raised.
    """

    def __init__(
        self,
        client: EngineClient,
        sender: Sender,
        submit: Submit,
        deadline: float,
        connected: Callable[[], bool],
    ) -> None:
        self.number = submit.number
        self.deadline = deadline
        self.connected = connected
        self.failure: LMIError | None = None
        self._client = client
        self._sender = sender
        sequences = len(submit.prompts) * submit.sampling_params.n
        self._running = set(range(sequences))
        self._arrivals = Arrivals(sequences)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[SequenceOutput]]:
        while self._running:
            batch, failure = self._collect(self._arrivals.take())
            if batch:
                yield batch  # what came before an error is still good
            if failure is not None and self._running:  # else it came too late to matter
                try:
                    self.failure = None
                    raise failure
                finally:
                    del failure  # its traceback holds this frame

    def close(self) -> None:
        """Abort what still runs; nothing is delivered from here on."""
        if self._client.forget(self) and self._running:
            self._sender.abort(Abort(self.number))

    def put(self, item: SequenceOutput | LMIError) -> None:
        """Hand over what has arrived; called by the client's threads."""
        self._arrivals.put(item)

    def end(self, failure: LMIError) -> None:
        """End the request in the engine at once, even if nobody iterates; called by the client's watch."""
        self.failure = failure
        if self._client.forget(self):
            self._sender.abort(Abort(self.number))
        self._arrivals.put(failure)

    def abort(self, index: int) -> None:
        """Stop sequence `index`, whose text is complete; the others go on."""
        if index in self._running:
            self._running.discard(index)
            self._sender.abort(Abort(self.number, index))

    def _collect(self, items: list[SequenceOutput | LMIError]) -> tuple[list[SequenceOutput], LMIError | None]:
        """Return the outputs of sequences that run, and the first error."""
        batch: list[SequenceOutput] = []
        failure: LMIError | None = None
        for item in items:
            if isinstance(item, LMIError):
                failure = failure or item
            elif item.index in self._running:  # else it was under way when its sequence was aborted
                batch.append(item)
                if item.output.finish_reason is not None:
                    self._running.discard(item.index)
        return batch, failure


class EngineClient:
    """Connects to the engine, again and again, and multiplexes this worker's requests over the connection.

    `on_ready` is called, before the state turns READY, with what the engine says of itself each time one has loaded.
    Nothing here waits for the engine to do anything: a hanging one takes its requests' time, and no more.
    """

    def __init__(self, socket_path: Path, on_ready: Callable[[EngineInfo], None], stall_timeout: float = 60.0) -> None:
        self._socket_path = socket_path
        self._on_ready = on_ready
        self._stall_timeout = stall_timeout
        self._heartbeat = HeartbeatReader(heartbeat_path(socket_path))
        self._sender: Sender | None = None
        self._generations: dict[int, Generation] = {}
        self._numbers = itertools.count(1)
        self._state = EngineState.STARTING
        self._ready = threading.Event()
        self._draining = False
        self._phase = "starting"

    def start(self) -> None:
        """Start the threads that read from the engine and watch over the requests."""
        threading.Thread(target=self._connect_forever, name="engine-reader", daemon=True).start()
        threading.Thread(target=self._watch, name="request-watch", daemon=True).start()

    @property
    def state(self) -> EngineState:
        """Known without asking anybody, so `/ping` can answer at any time."""
        if self._draining:
            return EngineState.DRAINING
        return EngineState.STALLED if self._stall() is not None else self._state

    @property
    def phase(self) -> str:
        """What the engine is doing, or what is wrong with it, in a few words."""
        return self._stall() or self._phase

    def _stall(self) -> str | None:
        return self._heartbeat.suspicion(self._stall_timeout) if self._state is EngineState.READY else None

    def wait_ready(self, timeout: float) -> None:
        """Return as soon as requests are taken, after `timeout` seconds at the latest."""
        self._ready.wait(timeout)

    def submit(
        self,
        prompts: list[list[int]],
        sampling_params: SamplingParams,
        *,
        request_id: str,
        timeout: float,
        connected: Callable[[], bool],
        adapters: Sequence[str | None] = (),
        priority: int = 0,
        image_prompts: Sequence[ImagePrompt | None] = (),
    ) -> Generation:
        """Start a request. `timeout` seconds from now it fails; as soon as `connected()` is false it is aborted.

        Raises `EngineNotReady` where no engine takes requests, `InvalidRequest` where this one is too long to be sent.
        """
        sender = self._sender
        if sender is None or self._state is not EngineState.READY:
            raise EngineNotReady(f"the engine is not ready: {self._phase}")
        if (stall := self._stall()) is not None:
            raise EngineNotReady(stall)
        submit = Submit(
            next(self._numbers), request_id, prompts, sampling_params, list(adapters), priority, list(image_prompts)
        )
        generation = Generation(self, sender, submit, time.monotonic() + timeout, connected)
        self._generations[submit.number] = generation
        try:
            sender.submit(submit)
        except LMIError:
            self.forget(generation)
            raise
        return generation

    def forget(self, generation: Generation) -> bool:
        """Stop delivering to a request; False where that had happened already."""
        return self._generations.pop(generation.number, None) is not None

    def start_draining(self) -> None:
        """The worker is shutting down; what is in flight goes on."""
        self._draining = True

    def end_draining(self) -> None:
        """The time to finish is over: what is still in flight fails."""
        self._fail_all(EngineNotReady("the server is shutting down and the time to finish is over"))

    def _connect_forever(self) -> None:
        interval = _RECONNECT_INTERVAL
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    sock.connect(str(self._socket_path))
                except OSError:  # there is no engine, or no file descriptor left
                    time.sleep(_RECONNECT_INTERVAL)
                    continue
                served = self._serve(worker_end(sock))
            if served:
                interval = _RECONNECT_INTERVAL
                continue
            time.sleep(interval)  # what fails for good must not take all the time there is
            interval = min(2 * interval, _LONGEST_RECONNECT_INTERVAL)

    def _serve(self, channel: Channel[WorkerMessage, EngineMessage]) -> bool:
        """Handle what the engine says until it hangs up; False where it says what cannot be handled."""
        self._sender = sender = Sender(channel)
        handled = True
        phase, cause = "the engine process has ended and is restarted", "the engine process ended"
        try:
            with contextlib.closing(channel.receive()) as messages:
                for message in messages:
                    self._handle(message)
        except Exception as error:
            logger.exception("the connection to the engine is dropped")
            handled = False
            phase = f"the connection to the engine was dropped and is tried again: {type(error).__name__}: {error}"
            cause = "the connection to the engine was dropped"
        if handled and (stall := self._stall()) is not None:
            cause = f"{stall}; it was ended"
        self._ready.clear()
        self._state, self._phase = EngineState.STARTING, phase
        self._sender = None
        sender.close()
        channel.close()
        self._fail_all(EngineDead(f"{cause} while it worked on this request"))
        return handled

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, Outputs):
            generations = self._generations
            for output in message.outputs:
                generation = generations.get(output.number)
                if generation is not None:
                    generation.put(output)
        elif isinstance(message, Failed):
            failed = self._generations.get(message.number)
            if failed is not None:
                failed.put(_error_of(message))
        elif isinstance(message, Ready):
            self._on_ready(message.info)
            self._state, self._phase = EngineState.READY, "ready"
            self._ready.set()
        else:
            self._ready.clear()
            self._state, self._phase = EngineState.STARTING, message.phase

    def _fail_all(self, error: LMIError) -> None:
        for generation in list(self._generations.values()):
            generation.put(error)

    def _watch(self) -> None:
        """End requests whose client has left or whose time is over, also while the engine says nothing."""
        while True:
            time.sleep(_WATCH_INTERVAL)
            now = time.monotonic()
            for generation in list(self._generations.values()):
                if not generation.connected():
                    generation.end(ClientDisconnected("the client closed the connection"))
                elif now >= generation.deadline:
                    generation.end(DeadlineExceeded("the request was not done within predict_timeout"))


def _error_of(message: Failed) -> LMIError:
    kind: type[LMIError] = getattr(errors, message.error)  # both ends are the same version of this package
    if issubclass(kind, InvalidRequest):
        return kind(message.message, field=message.field)
    return kind(message.message)
