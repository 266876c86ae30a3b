"""Checks requests against the limits of a loaded model and its engine.

Web workers call these checks to answer clients early, adapters call them to protect their engine. Errors use the
field names of `SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.sampling_params import SamplingParams


class Limits(Protocol):
    """Implemented by `Capabilities` in the engine process and by `EngineInfo` in web workers."""

    @property
    def backend(self) -> str:
        """Name of the backend."""

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its answer together."""

    @property
    def vocab_size(self) -> int:
        """All token ids are below this."""

    @property
    def max_logprobs(self) -> int:
        """Maximum of `logprobs`."""

    @property
    def max_prompt_logprobs(self) -> int | None:
        """Maximum of `prompt_logprobs`. Defaults to that of `logprobs`."""

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Fields of `SamplingParams` that the backend does not support, or "adapters"."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded LoRA adapters."""


def check_prompt(prompt_token_ids: Sequence[int], limits: Limits, *, max_input_len: int | None = None) -> None:
    """Reject a prompt that is empty, too long, or has token ids outside the vocabulary. Raises `InvalidRequest`.

    A prompt is too long if it exceeds `max_input_len`, or leaves no room for at least one generated token.
    """
    most = limits.max_model_len - 1 if max_input_len is None else min(max_input_len, limits.max_model_len - 1)
    if not prompt_token_ids:
        raise InvalidRequest("the prompt has no tokens; at least 1 is needed")
    if len(prompt_token_ids) > most:
        raise InvalidRequest(
            f"the prompt has {len(prompt_token_ids)} tokens, at most {most} are possible: "
            f"prompt and answer together may have {limits.max_model_len}"
        )
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= limits.vocab_size:
        wrong = next(token for token in prompt_token_ids if not 0 <= token < limits.vocab_size)
        raise InvalidRequest(f"token id {wrong} in the prompt is outside the vocabulary of {limits.vocab_size}")


def check_sampling_params(params: SamplingParams, limits: Limits) -> None:
    """Reject what this engine does not support. Raises `InvalidRequest` or `UnsupportedFeature` with the field."""
    for name in limits.unsupported:
        if getattr(params, name, None) != getattr(_DEFAULTS, name, None):
            raise UnsupportedFeature(f"the {limits.backend} backend does not support it", field=name)
    of_prompt = limits.max_logprobs if limits.max_prompt_logprobs is None else limits.max_prompt_logprobs
    for name, limit in (("logprobs", limits.max_logprobs), ("prompt_logprobs", of_prompt)):
        value = getattr(params, name)
        if value is not None and value > limit:
            raise InvalidRequest(f"must be at most {limit}, got {value}", field=name)
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        token_ids = getattr(params, name) or (0,)
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < limits.vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is outside the vocabulary of {limits.vocab_size}", field=name
                )


def check_adapter(name: str | None, limits: Limits) -> None:
    """Raise `InvalidRequest` if an adapter is not loaded, `UnsupportedFeature` if the backend supports none."""
    if name is None or name in limits.adapters:
        return
    if "adapters" in limits.unsupported:
        raise UnsupportedFeature(f"the {limits.backend} backend does not support it", field="adapters")
    known = ", ".join(limits.adapters) or "none"
    raise InvalidRequest(f"adapter {name[:100]!r} is not loaded; known: {known}", field="adapters")


_DEFAULTS = SamplingParams()
