"""Capabilities for tests that need no engine."""

from __future__ import annotations

from typing import Any

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.serving.parsed import ModelFacts


def capabilities(**fields: Any) -> Capabilities:
    return Capabilities(**{"backend": "echo", "max_model_len": 4096, "vocab_size": 1000, **fields})


def facts(model_id: str = "m", chat_template: str = "", **fields: Any) -> ModelFacts:
    return ModelFacts(model_id, chat_template, capabilities(**fields))
