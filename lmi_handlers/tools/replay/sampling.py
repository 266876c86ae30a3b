"""Tells which requests must be answered alike each time: those that are greedy, or have a seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lmi_handlers.tools.client.answer import parsed
from lmi_handlers.tools.replay.recordings import Recorded

_DRAWN_BY_DEFAULT = ("messages", "prompt", "input")
"""Fields of APIs whose default temperature is not 0: those of OpenAI, and Anthropic's."""

_SAMPLING = ("top_k", "top_p", "typical_p", "min_p")

_OF_TGI = re.compile(rb'\[\{"generated_text":"|data: ?\{"index":')
"""The beginning of TGI's arrays and events on `/invocations`. LMI's have other spaces."""


def is_sampled(recorded: Recorded) -> bool:
    """Tell whether an answer is drawn without a seed, as far as the request and the recorded answer say."""
    document = parsed(recorded.body)
    if not isinstance(document, Mapping):
        return False
    given = document.get("parameters")
    parameters: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if "inputs" in document and _is_of_tgi(recorded):
        return given is None or _draws_in_tgi(parameters)
    fields = {name: value for name, value in {**document, **parameters}.items() if value is not None}
    if "seed" in fields or "random_seed" in fields or fields.get("do_sample") is False:
        return False
    if "temperature" in fields:
        return bool(fields["temperature"])
    if fields.get("do_sample") or any(name in fields for name in _SAMPLING):
        return True
    return any(name in document for name in _DRAWN_BY_DEFAULT)


def _draws_in_tgi(parameters: Mapping[str, Any]) -> bool:
    """Tell whether TGI draws with these `parameters`; without any, it does. LMI has other rules.

    A temperature of 1 draws nothing by itself, and `do_sample: false` does not keep another one from it.
    """
    if parameters.get("seed") is not None:
        return False
    set_ones = (parameters.get(name) for name in ("top_k", "top_p", "typical_p"))
    temperature = parameters.get("temperature")
    return bool(parameters.get("do_sample")) or temperature not in (None, 1) or any(x is not None for x in set_ones)


def _is_of_tgi(recorded: Recorded) -> bool:
    answer = b"" if recorded.answer is None else recorded.answer.body
    return recorded.route in ("/generate", "/generate_stream") or _OF_TGI.match(answer) is not None
