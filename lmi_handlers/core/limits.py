"""What a loaded model and its engine can take: asked by the web worker for the client's sake, and by adapters for the engine's.

Errors name fields as `SamplingParams` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.sampling_params import SamplingParams


class Limits(Protocol):
    """What `Capabilities` tells in the engine process and `EngineInfo` in a web worker."""

    @property
    def backend(self) -> str:
        """Whose limits these are."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer together."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""

    @property
    def max_logprobs(self) -> int:
        """Bound of `logprobs`."""

    @property
    def max_prompt_logprobs(self) -> int | None:
        """Bound of `prompt_logprobs`; None where it is that of `logprobs`."""

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Fields of `SamplingParams` that cannot be honoured, or "adapters"."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that are loaded."""


def check_prompt(prompt_token_ids: Sequence[int], limits: Limits, *, max_input_len: int | None = None) -> None:
    """Refuse a prompt that is empty, longer than `max_input_len` or than leaves room for one token, or no text of this model.

    Raises `InvalidRequest`.
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
    """Refuse what this engine cannot do. Raises `InvalidRequest` or `UnsupportedFeature` with the field."""
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
    """Refuse an adapter that is not loaded. Raises `InvalidRequest`, or `UnsupportedFeature` where none can be."""
    if name is None or name in limits.adapters:
        return
    if "adapters" in limits.unsupported:
        raise UnsupportedFeature(f"the {limits.backend} backend does not support it", field="adapters")
    known = ", ".join(limits.adapters) or "none"
    raise InvalidRequest(f"adapter {name[:100]!r} is not loaded; known: {known}", field="adapters")


_DEFAULTS = SamplingParams()
