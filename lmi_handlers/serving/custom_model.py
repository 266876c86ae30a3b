"""A model that is served by its own code, seen from a web worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmi_handlers.config.custom_code import REGISTER, UNREGISTER, UPDATE
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import RefusedByCode
from lmi_handlers.core.usage import Usage
from lmi_handlers.custom_code.client import CodeClient, Invocation
from lmi_handlers.custom_code.messages import ChangeAdapter, Invoke
from lmi_handlers.engine.adapter_registry import RegisteredAdapter, read_registry
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

    @property
    def adapters(self) -> dict[str, RegisteredAdapter]:
        """The adapters that the code has loaded, by name."""
        return read_registry(self.runtime_dir) or {}

    def load_adapter(
        self, name: str, source: str, *, pinned: bool = False, replace: bool = False, options: Mapping[str, Any] = {}
    ) -> None:
        """Let the code load an adapter, in each process. The code gets all `options`, as text.

        Raises `RefusedByCode` if it does not, and any other error of the change. After `predict_timeout` seconds it raises
        `DeadlineExceeded`; the change goes on.
        """
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
        self._change(ChangeAdapter(UPDATE if replace else REGISTER, name, source, pinned, texts))

    def unload_adapter(self, name: str) -> None:
        """Let the code unload an adapter, in each process. Raises like `load_adapter`."""
        self._change(ChangeAdapter(UNREGISTER, name))

    def _change(self, change: ChangeAdapter) -> None:
        self._client.status.wait_ready(PATIENCE)
        invocation = self._client.invoke(change, Deadline(time.monotonic() + self.predict_timeout))
        try:
            reason = b"".join(invocation).decode()
        finally:
            invocation.close()
        if invocation.head.code >= 400:
            raise RefusedByCode(reason, invocation.head.code)

    def invoke(self, invoke: Invoke, usage: Usage, connected: Callable[[], bool]) -> Invocation:
        """Start a request and wait until its answer begins. Raises the error with which it ends before that."""
        self._client.status.wait_ready(PATIENCE)
        invocation = self._client.invoke(invoke, self.deadline(usage.started, connected), usage)
        usage.first_token_time = time.monotonic() - usage.started
        return invocation
