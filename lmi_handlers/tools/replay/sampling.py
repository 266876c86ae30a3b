"""Tells which requests must be answered alike each time: those that are greedy, or have a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmi_handlers.tools.client.answer import parsed

_DRAWN_BY_DEFAULT = ("messages", "prompt", "input")
"""Fields of APIs whose default temperature is not 0: those of OpenAI, and Anthropic's."""

_SAMPLING = ("top_k", "top_p", "typical_p", "min_p")


def is_sampled(body: bytes) -> bool:
    """Return whether an answer to a request is drawn without a seed, as far as the body says."""
    document = parsed(body)
    if not isinstance(document, Mapping):
        return False
    given = document.get("parameters")
    fields: dict[str, Any] = {**document, **(given if isinstance(given, Mapping) else {})}
    fields = {name: value for name, value in fields.items() if value is not None}
    if "seed" in fields or "random_seed" in fields or fields.get("do_sample") is False:
        return False
    if "temperature" in fields:
        return bool(fields["temperature"])
    if fields.get("do_sample") or any(name in fields for name in _SAMPLING):
        return True
    return any(name in document for name in _DRAWN_BY_DEFAULT)
