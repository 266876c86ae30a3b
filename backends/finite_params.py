"""Sampling parameters with which an engine's arithmetic stays finite."""

from __future__ import annotations

import msgspec

from lmi_handlers.core.sampling_params import ABOVE_ZERO, SamplingParams

_LOWEST_TEMPERATURE = 1e-5
"""A lower temperature only overflows. The distribution has only its most likely token left."""

_LEAST, _MOST = 1e-20, 1e20
"""Bounds of the parameters that must be greater than 0. The choice is the same beyond them."""


def finite_params(params: SamplingParams) -> SamplingParams:
    """Return parameters that choose the same tokens, and with which finite logits stay finite.

    A client may send any positive number. With the 32 bits of an engine, it may be 0 or infinite: vLLM and llama.cpp then
    choose from logits that are no numbers, and TensorRT-LLM rejects the request.
    """
    bounded = {name: min(max(getattr(params, name), _LEAST), _MOST) for name in ABOVE_ZERO}
    if params.temperature < _LOWEST_TEMPERATURE:
        bounded["temperature"] = 0.0
    if all(getattr(params, name) == value for name, value in bounded.items()):
        return params
    return msgspec.structs.replace(params, **bounded)
