"""An echo backend and a web worker's connection that record what the engine loop does with them."""

from __future__ import annotations

from backends.base import ModelFiles
from backends.echo.backend import EchoBackend
from lmi_handlers.core.meter import Meter
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.engine.messages import EngineMessage

EOS = 256
MAX_MODEL_LEN = 32


class RecordingEcho(EchoBackend):
    """Records which sequences run. `joined` has all sequences in the order in which they started."""

    def __init__(self) -> None:
        files = ModelFiles(path=None, eos_token_ids=(EOS,), vocab_size=257)
        super().__init__(
            files, max_model_len=MAX_MODEL_LEN, tokens_per_second=float("inf"), faults=True, sleep_seconds=0
        )
        self.running: dict[str, int] = {}
        self.joined: list[str] = []
        self.max_running = 0
        self.oldest_at_join = 0
        """Maximum age in steps of a running sequence when another one joined it."""
        self.meters: dict[int, Meter] = {}
        """Those of all requests, by `id`."""

    def add_request(self, request: TokenRequest) -> None:
        self.joined.append(request.request_id)
        self.meters[id(request.meter)] = request.meter
        super().add_request(request)
        self.oldest_at_join = max([self.oldest_at_join, *self.running.values()])
        self.running[request.request_id] = 0
        self.max_running = max(self.max_running, len(self.running))

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.running.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        self.running = {request_id: steps + 1 for request_id, steps in self.running.items()}
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        return outputs


class RecordingWorker:
    """Keeps each message with the number of sequences that were running when it was sent."""

    def __init__(self, backend: RecordingEcho) -> None:
        self.received: list[tuple[EngineMessage, int]] = []
        self._backend = backend

    def send(self, message: EngineMessage) -> None:
        self.received.append((message, len(self._backend.running)))

    @property
    def messages(self) -> list[EngineMessage]:
        return [message for message, _ in self.received]
