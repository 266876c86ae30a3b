"""The web worker's view of the engine: its state, and one `InFlightRequest` per request in flight.

It uses plain threads, queues and sockets. In a gevent worker, gevent replaces them with its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    LMIError,
    TextDeadline,
    error_of,
)
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.meter import Meter, Paid
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, GenerationRequest
from lmi_handlers.engine.adapter_registry import RegisteredAdapter
from lmi_handlers.engine.heartbeat import HeartbeatReader
from lmi_handlers.engine.messages import (
    Abort,
    AdapterChanged,
    EngineMessage,
    Failed,
    Joined,
    LoadAdapter,
    Loading,
    Outputs,
    Pays,
    Ready,
    SequenceOutput,
    Submit,
    Sync,
    Synced,
    UnloadAdapter,
    join_key,
    worker_end,
)
from lmi_handlers.engine.sender import EngineSender
from lmi_handlers.engine.settings import heartbeat_path
from lmi_handlers.engine.status import NOT_FINISHED, EngineState, EngineStatus, not_ready
from lmi_handlers.engine.unread_outputs import UnreadOutputs
from lmi_handlers.workers.link import Link

logger = logging.getLogger(__name__)

_OUTPUTS_AT_ONCE = 64
"""Outputs after which other requests get a turn: about two milliseconds of work. An engine that is faster than this
worker always has the next message ready, so reading alone gives nobody a turn."""


class InFlightRequest:
    """The outputs of one submitted request, as they arrive.

    Each iteration yields a list of all outputs that have arrived since the last one, which may be none. It ends when every
    sequence of the request has finished or has been aborted. It raises the error that ended the request: the engine's,
    `DeadlineExceeded` or `ClientDisconnected`. Leaving the `with` block early aborts the sequences still running.

    At its deadline's cutoff, sequences that still run end with `FinishReason.LENGTH`, and `truncated` names the option. If
    nothing has been generated, or what is generated is no text, that raises `TextDeadline`.

    `shared` is set if other requests may join its answer, and `joined` if it has joined another's. Then `paid` is the part of
    the answer for which it does not pay, None for all of it.

    `failure` is the error with which the watcher thread has ended the request. It is set even if nobody iterates, and
    cleared when the iterator raises it.

    Whoever iterates may set `silent_at`, a monotonic time. At that time, an empty list is yielded unless there are outputs.
    Whoever iterates may also set `on_arrival`, which must not wait. It is called with each output once it can be iterated
    over, and with None if something else has happened, such as an error or the end.
    """

    def __init__(
        self,
        client: EngineClient,
        sender: EngineSender,
        submit: Submit,
        deadline: Deadline,
    ) -> None:
        self.number = submit.number
        self.deadline = deadline
        self.truncated: str | None = None
        self.shared = submit.join_key is not None
        self.joined = False
        self.paid: Paid | None = None
        self.failure: LMIError | None = None
        self.silent_at = math.inf
        self.on_arrival: Callable[[SequenceOutput | None], None] = _ignore
        self._woken_at = math.inf  # only the watcher thread writes it
        self._client = client
        self._sender = sender
        self._generates = submit.pooling_params is None
        self._begun = False
        self._last: SequenceOutput | None = None
        sequences = len(submit.prompts) * submit.sampling_params.n
        self._running = set(range(sequences))
        self._unread = UnreadOutputs(sequences)

    @property
    def running(self) -> int:
        """The number of its sequences that have not ended."""
        return len(self._running)

    @property
    def meter(self) -> Meter | None:
        """Its usage of the engine up to the last output that has been iterated over, None before the first."""
        return None if self._last is None else Meter(self._last.engine_time, self._last.kv_block_time)

    def __enter__(self) -> InFlightRequest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[SequenceOutput]]:
        while self._running:
            batch, failure = self._collect(self._unread.take())
            if batch:
                self._begun = self._generates
                self._last = batch[-1]
                if failure is not None:
                    self._unread.put(failure)  # again: the outputs are still valid, and `ready` says that there is more
                    failure = None
            if failure is None:
                yield batch
                continue
            if isinstance(failure, TextDeadline) and self._begun:
                yield self._cut(failure.option)
            if self._running:  # otherwise it came too late to matter
                try:
                    self.failure = None
                    raise failure
                finally:
                    del failure  # its traceback refers to this frame

    def ready(self) -> bool:
        """Tell whether iterating goes on at once: something has arrived, or all sequences have ended."""
        return not self._running or not self._unread.empty()

    def close(self) -> None:
        """Abort the sequences that are still running. Nothing is delivered after that."""
        if self._client.forget(self) and self._running:
            self._sender.abort(Abort(self.number))
        self.on_arrival(None)
        self.on_arrival = _ignore  # it may refer to this request

    def put(self, item: SequenceOutput | LMIError) -> None:
        """Add what has arrived. Called by the client's threads."""
        self._unread.put(item)
        self.on_arrival(None if isinstance(item, LMIError) else item)

    def end(self, failure: LMIError) -> None:
        """End the request at once, in the engine too, even if nobody iterates. Called by the watcher thread."""
        if not isinstance(failure, TextDeadline):  # which is rarely an error
            self.failure = failure
        if self._client.forget(self):
            self._sender.abort(Abort(self.number, final=isinstance(failure, TextDeadline)))
        self.put(failure)

    def watch(self, now: float) -> None:
        """End the request if its deadline has been reached at the monotonic time `now`. Called by the watcher.

        If not, let the iteration yield if it has been silent for too long.
        """
        if (error := self.deadline.reached(now)) is not None:
            self.end(error)
            return
        silent_at = self.silent_at
        if now >= silent_at != self._woken_at:
            self._woken_at = silent_at
            self._unread.wake()
            self.on_arrival(None)

    def abort(self, index: int) -> None:
        """Stop sequence `index` because its text is complete. The other sequences continue."""
        if index in self._running:
            self._running.discard(index)
            self._sender.abort(Abort(self.number, index))
            if not self._running:
                self.on_arrival(None)

    def _cut(self, option: str) -> list[SequenceOutput]:
        """Return the ends of the sequences that are running."""
        running, self._running = sorted(self._running), set()
        self.truncated = option if running else None
        end = TokenOutput(request_id="", token_ids=[], finish_reason=FinishReason.LENGTH)
        return [SequenceOutput(self.number, index, end, 0.0) for index in running]

    def _collect(self, items: list[SequenceOutput | LMIError]) -> tuple[list[SequenceOutput], LMIError | None]:
        """Return the outputs of running sequences up to the first error, and that error."""
        batch: list[SequenceOutput] = []
        for item in items:
            if isinstance(item, LMIError):
                return batch, item
            if item.index in self._running:  # otherwise it arrived after its sequence was aborted
                batch.append(item)
                if item.output.finish_reason is not None:
                    self._running.discard(item.index)
        return batch, None


def _ignore(output: SequenceOutput | None) -> None:
    """Nobody wants to know."""


class EngineClient:
    """Connects to the engine, reconnects when needed, and multiplexes this worker's requests over the connection.

    `on_announcement` is called with each `Loading` and `Ready`. The state becomes READY after it returns. Nothing here
    waits for the engine: if it hangs, only its own requests are delayed.
    """

    def __init__(
        self, socket_path: Path, on_announcement: Callable[[Loading | Ready], None], stall_timeout: float = 60.0
    ) -> None:
        self._on_announcement = on_announcement
        self._heartbeat = HeartbeatReader(heartbeat_path(socket_path))
        self.status = EngineStatus(self._heartbeat, stall_timeout)
        self._sender: EngineSender | None = None
        self._generations: dict[int, InFlightRequest] = {}
        self._link = Link(socket_path, self._serve, name="engine-reader", in_flight=self._generations.values())
        self._changes: dict[int, queue.SimpleQueue[LMIError | None]] = {}
        self._adapters: Mapping[str, str] = {}  # name -> digest
        self._numbers = itertools.count(1)
        self._since_turn = 0

    def start(self) -> None:
        """Start the threads that read from the engine and watch over the requests."""
        self._link.start()

    def close(self) -> None:
        """Disconnect, and end the threads. Requests in flight fail."""
        self._link.close()

    @property
    def state(self) -> EngineState:
        """The current state. It is known without asking the engine, so `/ping` can always answer."""
        return self.status.state

    @property
    def load(self) -> int:
        """The number of the engine's sequences, as far as this worker knows: its own, or those in the engine's batch."""
        own = sum(generation.running for generation in list(self._generations.values()))
        return max(own, self._heartbeat.running)

    def has_adapter(self, prompt: EncodedPrompt) -> bool:
        """Tell whether the engine has the prompt's adapter, with the same files, as far as this worker knows."""
        return prompt.adapter is None or self._adapters.get(prompt.adapter) == prompt.adapter_digest

    def submit(self, prompts: list[EncodedPrompt], request: GenerationRequest, deadline: Deadline) -> InFlightRequest:
        """Start a request, whose prompts have been encoded. It is aborted at the `deadline`.

        Raises `EngineNotReady` if no engine accepts requests, `InvalidRequest` if the request is too large to send.
        """
        self.status.check()
        sender = self._sender
        if sender is None:  # the connection has just ended
            raise EngineNotReady(not_ready(self.status.phase))
        submit = Submit(
            next(self._numbers),
            request.request_id,
            prompts,
            request.sampling_params,
            request.priority,
            request.pooling_params,
            request.generated,
        )
        if request.identity is not None:
            key = join_key(submit, request.identity)
            submit = msgspec.structs.replace(submit, join_key=key, owner=request.owner)
        generation = InFlightRequest(self, sender, submit, deadline)
        self._generations[submit.number] = generation
        try:
            sender.submit(submit)
        except LMIError:
            self.forget(generation)
            raise
        return generation

    def load_adapter(self, name: str, adapter: RegisteredAdapter, *, timeout: float, replace: bool = False) -> None:
        """Load an adapter into the engine, and wait until requests of all workers may use it.

        Raises the engine's error or `EngineNotReady`. After `timeout` seconds it raises `DeadlineExceeded`; the engine
        goes on, and registers the adapter if it can be loaded.
        """
        message = LoadAdapter(
            next(self._numbers), name, adapter.source, adapter.version, adapter.pinned, replace, adapter.folder
        )
        self._change_adapter(message, timeout)

    def unload_adapter(self, name: str, version: int | None = None, *, timeout: float) -> None:
        """Refuse further requests for an adapter. Those in flight finish. Raises like `load_adapter`.

        With `version`, an adapter that another one has replaced stays.
        """
        self._change_adapter(UnloadAdapter(next(self._numbers), name, version), timeout)

    def forget(self, generation: InFlightRequest) -> bool:
        """Stop delivering to a request. Returns False if that had already happened."""
        return self._generations.pop(generation.number, None) is not None

    def end_draining(self) -> None:
        """Fail the requests that are still in flight: the time to finish is over."""
        self._fail_all(EngineNotReady(NOT_FINISHED, code="shutting_down"))

    def _change_adapter(self, message: LoadAdapter | UnloadAdapter, timeout: float) -> None:
        self.status.check()
        sender = self._sender
        if sender is None:  # the connection has just ended
            raise EngineNotReady(f"the engine is not ready: {self.status.phase}")
        self._changes[message.number] = answer = queue.SimpleQueue[LMIError | None]()
        try:
            sender.submit(message)
            error = answer.get(timeout=timeout)
        except queue.Empty:
            change = "loaded" if isinstance(message, LoadAdapter) else "unloaded"
            raise DeadlineExceeded(
                f"adapter {message.name!r} is not {change} yet, but will be, unless the log has an error; GET /adapters "
                "lists the adapters that are loaded"
            ) from None
        finally:
            del self._changes[message.number]
        if error is not None:
            raise error

    def _serve(self, sock: socket.socket) -> bool:
        """Handle the engine's messages until the connection ends. Returns False if a message could not be handled."""
        channel = worker_end(sock)
        self._sender = sender = EngineSender(channel)
        handled = True
        phase, cause = "the engine process has ended and is being restarted", "the engine process ended"
        try:
            with contextlib.closing(channel.receive()) as messages:
                for message in messages:
                    self._handle(message, sender)
        except Exception as error:
            logger.exception("the connection to the engine was dropped")
            handled = False
            phase = f"the connection to the engine was dropped, reconnecting: {type(error).__name__}: {error}"
            cause = "the connection to the engine was dropped"
        if handled and (stall := self.status.stall()) is not None:
            cause = f"{stall}; it was ended"
        self.status.loading(Loading(phase, time.monotonic()))
        self._sender = None
        sender.close()
        channel.close()
        self._fail_all(EngineDead(f"{cause} while it worked on this request"))
        return handled

    def _handle(self, message: EngineMessage, sender: EngineSender) -> None:
        if isinstance(message, Outputs):
            generations = self._generations
            for output in message.outputs:
                generation = generations.get(output.number)
                if generation is not None:
                    generation.put(output)
                self._since_turn += 1
                if self._since_turn >= _OUTPUTS_AT_ONCE:
                    self._since_turn = 0
                    give_way()
        elif isinstance(message, Joined):
            if (generation := self._generations.get(message.number)) is not None:
                generation.joined = True
        elif isinstance(message, Pays):
            if (generation := self._generations.get(message.number)) is not None:
                generation.paid = message.paid
        elif isinstance(message, Failed):
            failed = self._generations.get(message.number) or self._changes.get(message.number)
            if failed is not None:
                failed.put(error_of(message.error, message.message, message.field, message.code))
        elif isinstance(message, AdapterChanged):
            if (change := self._changes.get(message.number)) is not None:
                change.put(None)
        elif isinstance(message, Sync):
            sender.confirm(Synced(message.number))
        elif isinstance(message, Ready):
            self._adapters = message.capabilities.adapter_digests
            self._on_announcement(message)
            self.status.ready()
        else:
            self.status.loading(message)
            self._on_announcement(message)

    def _fail_all(self, error: LMIError) -> None:
        self._link.fail_all(error)
        for change in list(self._changes.values()):
            change.put(error)
