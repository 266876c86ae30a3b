"""The engines of one model, as a web worker sees them: each request goes to one of them."""

from __future__ import annotations

import array
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lmi_handlers.core.affinity import choose
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import AdapterExists, DeadlineExceeded, EngineError, LMIError, RequestError
from lmi_handlers.core.request import EncodedPrompt, GenerationRequest
from lmi_handlers.engine.adapter_registry import RegisteredAdapter, read_registry
from lmi_handlers.engine.client import EngineClient, InFlightRequest
from lmi_handlers.engine.messages import Loading, Ready
from lmi_handlers.engine.sent_requests import SentRequests
from lmi_handlers.engine.status import EngineState, EngineStatus, Status

_SHARED_TOKENS = 256
"""Prompts that begin with as many equal tokens go to the same replica, which may have computed them before."""

_POLL_INTERVAL = 0.02


class Replicas:
    """One client per engine. A request goes to the engine that may know its beginning, or else has least to do.

    If it repeats another one, it goes to that one's engine. While its adapter is replaced in one engine after the other, it
    goes to those that have the same files as its prompt is for.

    An engine that ends fails its own requests only. As long as any engine is ready, the model is. All sockets are in the
    server's runtime directory, with the registry of adapters.
    """

    def __init__(
        self,
        socket_paths: Sequence[Path],
        on_announcement: Callable[[Loading | Ready], None],
        stall_timeout: float,
    ) -> None:
        self._clients = [EngineClient(path, on_announcement, stall_timeout) for path in socket_paths]
        self._runtime_dir = socket_paths[0].parent
        self._sent: SentRequests | None = None
        if len(socket_paths) > 1:
            with contextlib.suppress(OSError):  # no room on the disk
                self._sent = SentRequests(self._runtime_dir / "sent-requests")
        self.status = ReplicaStatus([client.status for client in self._clients])

    def start(self) -> None:
        """Connect to all engines in the background."""
        for client in self._clients:
            client.start()

    def close(self) -> None:
        """Disconnect from all engines."""
        for client in self._clients:
            client.close()
        if self._sent is not None:
            self._sent.close()

    @property
    def state(self) -> EngineState:
        """The state of the model."""
        return self.status.state

    @property
    def load(self) -> int:
        """The number of sequences of the engine that has most, as far as this worker knows."""
        return max(client.load for client in self._clients)

    def submit(self, prompts: list[EncodedPrompt], request: GenerationRequest, deadline: Deadline) -> InFlightRequest:
        """Start a request like `EngineClient.submit`, which says what is raised."""
        if request.identity is None or self._sent is None:
            client = self.choose(prompts)
        else:
            client = self._choose_again(prompts, request.identity, self._sent)
        return client.submit(prompts, request, deadline)

    def load_adapter(
        self, name: str, source: str, *, timeout: float, pinned: bool = False, replace: bool = False
    ) -> None:
        """Load an adapter into all engines, within `timeout` seconds. Raises like `EngineClient.load_adapter`.

        An engine that is not ready, or ends meanwhile, loads it when it is started again. If an engine refuses it, all
        have again what was registered before. If the time is up, loading goes on, and nothing is undone.
        """
        deadline = time.monotonic() + timeout
        wanted = RegisteredAdapter(source, pinned, time.time_ns())
        before = (read_registry(self._runtime_dir) or {}).get(name)
        try:
            self._load(name, wanted, deadline, replace=replace)
        except (AdapterExists, DeadlineExceeded):
            raise
        except RequestError:
            if len(self._clients) > 1:
                self._undo(name, wanted.version, before, time.monotonic() + timeout)
            raise

    def unload_adapter(self, name: str, *, timeout: float) -> None:
        """Unload an adapter from all engines. Requests in flight finish. Raises like `EngineClient.unload_adapter`."""
        deadline = time.monotonic() + timeout
        self._in_each(lambda client: client.unload_adapter(name, timeout=_left(deadline)))

    def _load(self, name: str, adapter: RegisteredAdapter, deadline: float, *, replace: bool) -> None:
        def load(client: EngineClient) -> None:
            client.load_adapter(name, adapter, timeout=_left(deadline), replace=replace)

        self._in_each(load)

    def _undo(self, name: str, version: int, before: RegisteredAdapter | None, deadline: float) -> None:
        """Take back the change to `version`, unless there has been another. An engine that follows may have begun to."""
        now = (read_registry(self._runtime_dir) or {}).get(name)
        if now is not None and now.version != version:
            return
        with contextlib.suppress(LMIError):  # the log has it; the caller raises the first error
            if before is None:
                self._in_each(lambda client: client.unload_adapter(name, version, timeout=_left(deadline)))
            else:
                self._load(name, before, deadline, replace=True)

    def _in_each(self, change: Callable[[EngineClient], None]) -> None:
        """Change the engines that are ready. Raises `EngineError` if no change was made."""
        changed, failure = False, None
        for client in self._clients:
            try:
                change(client)
                changed = True
            except EngineError as error:  # noqa: PERF203  the others are changed nevertheless
                failure = error
        if failure is not None and not changed:
            raise failure

    def end_draining(self) -> None:
        """Fail the requests that are still in flight: the time to finish is over."""
        for client in self._clients:
            client.end_draining()

    def choose(self, prompts: Sequence[EncodedPrompt]) -> EngineClient:
        """Return the engine for a request, which may not be ready if none is."""
        prompt = prompts[0]
        if len(self._clients) == 1:
            return self._clients[0]
        ready = [client for client in self._clients if client.status.accepts]
        if not ready:
            return self._clients[0]  # it says why
        able = [client for client in ready if all(map(client.has_adapter, prompts))]
        loads = {client: client.load for client in able or ready}
        if len(prompt.token_ids) >= _SHARED_TOKENS:
            named = {str(self._clients.index(client)): load for client, load in loads.items()}
            return self._clients[int(choose(named, _beginning(prompt)))]
        return min(loads, key=loads.__getitem__)

    def _choose_again(self, prompts: Sequence[EncodedPrompt], identity: bytes, sent: SentRequests) -> EngineClient:
        number = sent.engine_of(identity, prompts[0])
        if number is not None and number < len(self._clients):
            client = self._clients[number]
            if client.status.accepts and all(map(client.has_adapter, prompts)):
                return client
        client = self.choose(prompts)
        sent.note(identity, prompts[0], self._clients.index(client))
        return client


def _beginning(prompt: EncodedPrompt) -> bytes:
    """Return what prompts that may share a prefix have in common: its tokens, the adapter and the salt."""
    names = f"{prompt.adapter or ''}\0{prompt.cache_salt or ''}".encode("utf-8", "surrogatepass")
    return array.array("I", prompt.token_ids[:_SHARED_TOKENS]).tobytes() + names


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


class ReplicaStatus(Status):
    """The state of a model with several engines: that of the engine that is closest to being ready."""

    def __init__(self, parts: Sequence[EngineStatus]) -> None:
        self.parts = parts

    @property
    def state(self) -> EngineState:
        return self._best.state

    @property
    def phase(self) -> str:
        return self._best.phase

    @property
    def phase_seconds(self) -> float:
        return self._best.phase_seconds

    def wait_ready(self, timeout: float) -> None:
        if len(self.parts) == 1:
            self.parts[0].wait_ready(timeout)
            return
        deadline = time.monotonic() + timeout
        while not any(part.accepts for part in self.parts) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)

    def start_draining(self) -> None:
        for part in self.parts:
            part.start_draining()

    @property
    def _best(self) -> EngineStatus:
        return next((part for part in self.parts if part.accepts), self.parts[0])
