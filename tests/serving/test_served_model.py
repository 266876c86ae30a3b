"""What happens in a web worker between a parsed request and its answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from capabilities import capabilities
from engine_thread import Engine
from waiting import wait_until

from formatters.lmi.rolling import JsonFormatter
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine.client import EngineState
from lmi_handlers.engine.messages import Ready
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.bundle import build_byte_bundle


def test_request_that_was_checked_for_another_engine_is_rejected(tmp_path: Path) -> None:
    """The engine may be restarted with other adapters while images are fetched."""
    build_byte_bundle(tmp_path)
    (tmp_path / "metrics").mkdir()
    engine = Engine(tmp_path / "engine.sock")
    model = ServedModel(ServingProperties(), engine.path)
    first, second = (Ready(str(tmp_path), capabilities(vocab_size=257, adapters=names)) for names in (("a",), ("b",)))
    engine.server.announce(first)
    model.start()
    wait_until(lambda: model.state is EngineState.READY)

    def restart(request: GenerationRequest, position: int, tokens: int, limits: Capabilities) -> None:
        engine.server.announce(second)
        wait_until(lambda: model.loaded.capabilities == second.capabilities)

    request = GenerationRequest(request_id="r", prompts=(Prompt("hi", "a"),), sampling_params=SamplingParams())
    with pytest.raises(EngineNotReady, match="restarted while the request was being prepared"):
        model.start_generation(
            Parsed(request, JsonFormatter, str, restart), Usage(started=time.monotonic()), lambda: True
        )
