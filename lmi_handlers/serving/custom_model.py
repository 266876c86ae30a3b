"""A model that is served by its own code, seen from a web worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.usage import Usage
from lmi_handlers.custom_code.client import CodeClient, Invocation
from lmi_handlers.custom_code.messages import Invoke
from lmi_handlers.serving.served import PATIENCE, Served


class CustomModel(Served):
    """The model's own code answers the requests, in processes of its own."""

    def __init__(self, properties: ServingProperties, socket_path: Path) -> None:
        self._client = CodeClient(socket_path, properties.stall_timeout)
        super().__init__(properties, socket_path.parent, self._client.status)

    def start(self) -> None:
        self._client.start()

    def close(self) -> None:
        self._client.close()
        super().close()

    def end_draining(self) -> None:
        self._client.end_draining()

    def invoke(self, invoke: Invoke, usage: Usage, connected: Callable[[], bool]) -> Invocation:
        """Start a request and wait until its answer begins. Raises the error with which it ends before that."""
        self._client.status.wait_ready(PATIENCE)
        invocation = self._client.invoke(invoke, usage.started + self.predict_timeout, connected)
        usage.first_token_time = time.monotonic() - usage.started
        return invocation
