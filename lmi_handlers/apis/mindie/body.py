"""MindIE's request body: TGI's with fewer fields, other defaults and tighter bounds. null always means absent.

Source: MindIE's description of its text and streaming inference interface. Anything that it does not specify follows
TGI.
"""

from __future__ import annotations

import secrets

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.tgi.body import TgiCompatBody, TgiParameters, convert_body, read_body
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import SamplingParams

DOCUMENTED = (
    "decoder_input_details",
    "details",
    "do_sample",
    "max_new_tokens",
    "repetition_penalty",
    "return_full_text",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "truncate",
)
"""The supported `parameters`. TGI's others are ignored."""

MAX_INPUT_CHARACTERS = 16_000
DEFAULT_NEW_TOKENS = 20


class MindieParameters(TgiParameters, frozen=True, kw_only=True):
    """The `parameters` object, in which only the `DOCUMENTED` fields are ever set."""

    def sampling_params(self, *, stream: bool) -> SamplingParams:
        """Translate. Raises `InvalidRequest`.

        Details always include a seed, so one is chosen even if it has no effect.
        """
        params = super().sampling_params(stream=stream)
        seed = params.seed
        if seed is None and (self.details or self.decoder_input_details):
            seed = self.seed or 1 + secrets.randbelow(2**64 - 1)
        return msgspec.structs.replace(params, max_tokens=self.max_new_tokens or DEFAULT_NEW_TOKENS, seed=seed)


class MindieBody(TgiCompatBody, frozen=True):
    """The request body. Sampling depends on `parameters` only."""

    parameters: MindieParameters = MindieParameters()


def decode_mindie(payload: Payload) -> tuple[MindieBody, tuple[str, ...]]:
    """Return the body and the names of its ignored fields. Raises `InvalidJson` or `InvalidBody`."""
    value, undocumented = _documented(read_body(payload))
    body, ignored = convert_body(value, MindieBody)
    return body, ignored + undocumented


def _documented(value: object) -> tuple[object, tuple[str, ...]]:
    """Return `value` without nulls and without undocumented parameters, and the names of those parameters."""
    if not isinstance(value, dict):
        return value, ()
    body = _without_nulls(value)
    parameters = body.get("parameters")
    if not isinstance(parameters, dict):
        return body, ()
    given = _without_nulls(parameters)
    known = {name: value for name, value in given.items() if name in DOCUMENTED}
    return body | {"parameters": known}, tuple(name for name in given if name not in known)


def _without_nulls(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def check_bounds(body: MindieBody) -> None:
    """Check the bounds that are tighter than TGI's and need no model. Raises `InvalidRequest`."""
    if len(body.inputs) > MAX_INPUT_CHARACTERS:
        raise InvalidRequest(f"`inputs` must have at most {MAX_INPUT_CHARACTERS} characters. Given: {len(body.inputs)}")
    for name in ("seed", "truncate"):
        if getattr(body.parameters, name) == 0:
            raise InvalidRequest(f"`{name}` must be strictly positive")


def check_model_bounds(
    parameters: MindieParameters, tokens: int, capabilities: Capabilities, *, max_iter_times: int
) -> None:
    """Check the prompt's number of tokens and the parameters against the model's limits. Raises `InvalidRequest`.

    `max_iter_times` is the maximum for `max_new_tokens`. If it is not set, the answer gets as many tokens as fit.
    """
    for name, value, most in (
        ("`truncate`", parameters.truncate, capabilities.max_input_tokens),
        ("`inputs` tokens", tokens, capabilities.max_input_tokens),
        ("`max_new_tokens`", parameters.max_new_tokens, max_iter_times),
        ("`top_k`", parameters.top_k, capabilities.vocab_size - 1),
    ):
        if value is not None and value > most:
            raise InvalidRequest(f"{name} must be > 0 and <= {most}. Given: {value}")
