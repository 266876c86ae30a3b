"""An engine that runs in threads of the test process, and requests to it."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capabilities import capabilities
from prompts import encoded

from backends.base import ModelFiles
from backends.echo.backend import EchoBackend
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.admission import RollingBatch
from lmi_handlers.engine.client import EngineClient, InFlightRequest
from lmi_handlers.engine.loop import EngineLoop, Inbox
from lmi_handlers.engine.messages import (
    Ready,
)
from lmi_handlers.engine.worker_server import WorkerServer


class Engine:
    """Runs what the engine process runs, except that no model is loaded. The batch and the queue hold two sequences each."""

    ready = Ready("", capabilities(vocab_size=257))

    def __init__(self, path: Path, tokens_per_second: float = math.inf) -> None:
        self.path = path
        self._inbox: Inbox = queue.SimpleQueue()
        files = ModelFiles(path=None, eos_token_ids=(256,), vocab_size=257)
        self.backend = EchoBackend(
            files, max_model_len=4096, tokens_per_second=tokens_per_second, faults=True, sleep_seconds=0.1
        )
        self._loop = EngineLoop(self.backend, RollingBatch(2), 2, self._inbox, retry_grace=600)
        self.server = WorkerServer(path, self._inbox)
        self._thread = threading.Thread(target=self._loop.run)

    def start(self) -> None:
        self._thread.start()
        self.server.announce(self.ready)

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(10)


def submit(
    client: EngineClient,
    *prompts: bytes,
    timeout: float = 60,
    connected: Callable[[], bool] = lambda: True,
    **params: Any,
) -> InFlightRequest:
    request = GenerationRequest(request_id="r", prompts=(), sampling_params=SamplingParams(**params))
    return client.submit(encoded(*prompts), request, Deadline(time.monotonic() + timeout, connected))


def texts_of(generation: InFlightRequest, count: int = 1) -> list[bytes]:
    """The bytes of each sequence, once the generation has ended."""
    answers = [b""] * count
    with generation:
        for batch in generation:
            for item in batch:
                answers[item.index] += bytes(token_id for token_id in item.output.token_ids if token_id < 256)
    return answers


def assert_engine_is_free(client: EngineClient) -> None:
    """Both places in the batch can be taken, and no request is left over."""
    assert texts_of(submit(client, b"one", b"two"), 2) == [b"one", b"two"]
