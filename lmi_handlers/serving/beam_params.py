"""Requests that beam search supports, and the engine's parameters for each step."""

from __future__ import annotations

from collections.abc import Callable

from lmi_handlers.core.capabilities import Capabilities, unsupported_fields
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import BeamSearchParams, GenerationRequest
from lmi_handlers.core.sampling_params import RANGES, SamplingParams
from lmi_handlers.text.tokenizer import Tokenizer

_SUPPORTED = frozenset(
    {
        "n",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "logprobs",
        "prompt_logprobs",
        # No effect when the most probable tokens are taken, with or without beams.
        "temperature",
        "seed",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "prompt_lookup_num_tokens",
    }
)
"""Fields of `SamplingParams` that beam search supports. The others edit logits depending on the generated tokens, or
change the probabilities. New fields are refused until they are added here.
"""


def check_beam_search(
    request: GenerationRequest,
    params: BeamSearchParams,
    capabilities: Capabilities,
    tokenizer: Tokenizer,
    alias: Callable[[str], str],
) -> None:
    """Refuse requests that beam search cannot serve correctly.

    Raises `InvalidRequest` or `UnsupportedFeature` on `num_beams`, under the client's name for it.
    """
    field, asked = alias("num_beams"), request.sampling_params
    if request.stream:
        raise InvalidRequest("beam search cannot be streamed: the answer is only known at the end", field=field)
    if not asked.greedy:
        raise InvalidRequest(f"beam search cannot be combined with sampling ({alias('temperature')})", field=field)
    for name in asked.__struct_fields__:
        if name not in _SUPPORTED and getattr(asked, name) != getattr(_DEFAULTS, name):
            raise InvalidRequest(f"beam search cannot be combined with {alias(name)}", field=field)
    if asked.n > params.num_beams:
        raise InvalidRequest(f"must be at least {alias('n')} ({asked.n}), got {params.num_beams}", field=field)
    endings = len(beam_endings(asked, tokenizer))
    limit = min(capabilities.max_logprobs, capabilities.vocab_size, int(RANGES["logprobs"][1])) - endings
    if params.num_beams > limit:
        raise InvalidRequest(
            f"must be at most {limit}, got {params.num_beams}: each step needs one candidate per beam and one for each of "
            f"the {endings} tokens that end an answer, and the {capabilities.backend} backend returns at most {limit + endings}",
            field=field,
        )
    step = step_params(asked, params, tokenizer)
    for name in unsupported_fields(step, capabilities):
        raise UnsupportedFeature(
            f"beam search needs {name}, which the {capabilities.backend} backend does not support", field=field
        )


def step_params(asked: SamplingParams, params: BeamSearchParams, tokenizer: Tokenizer) -> SamplingParams:
    """The parameters of the first step. Later steps omit `prompt_logprobs`.

    `ignore_eos` is set because an engine may not return the token that ended a sequence, nor its alternatives.
    """
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        ignore_eos=True,
        logprobs=max(params.num_beams + len(beam_endings(asked, tokenizer)), asked.logprobs or 0),
        prompt_logprobs=asked.prompt_logprobs,
    )


def beam_endings(asked: SamplingParams, tokenizer: Tokenizer) -> dict[int, FinishReason]:
    """Return the token ids that end a beam, with the reason."""
    endings = dict.fromkeys(asked.stop_token_ids, FinishReason.STOP_SEQUENCE)
    if not asked.ignore_eos:
        endings |= dict.fromkeys(tokenizer.eos_token_ids, FinishReason.EOS_TOKEN)
    return endings


_DEFAULTS = SamplingParams()
