"""The bounds that TGI's validation in `body.py` enforces, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmi_handlers.apis.documentation import NON_EMPTY_TEXT, REQUEST_BOUNDS, parameter_bounds
from lmi_handlers.apis.tgi.body import TgiParameters
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.sampling_params import RANGES

MAX_SEED = 2**64 - 1


def tgi_bounds(properties: ServingProperties) -> dict[str, Mapping[str, Any]]:
    """Return the bounds of `parameters`."""
    fraction = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
    stop = {"maxItems": properties.max_stop_sequences, "items": NON_EMPTY_TEXT}
    return {
        **parameter_bounds(TgiParameters),
        "best_of": {"minimum": 1, "maximum": properties.max_best_of},
        "temperature": {"exclusiveMinimum": 0, "maximum": RANGES["temperature"][1]},
        "repetition_penalty": {"exclusiveMinimum": 0},
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "top_k": {"minimum": 1},
        "top_p": fraction,
        "typical_p": fraction,
        "max_new_tokens": {"minimum": 1},
        "stop": stop,
        "stop_sequences": stop,
        "truncate": {"minimum": 1},
        "seed": {"maximum": MAX_SEED},
        "cache_salt": REQUEST_BOUNDS["cache_salt"],
        "top_n_tokens": {"maximum": properties.max_top_n_tokens},
    }
