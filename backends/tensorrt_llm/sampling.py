"""Our `SamplingParams` -> TensorRT-LLM's."""

from __future__ import annotations

import random
import re
from typing import Any

import tensorrt_llm
import torch
from tensorrt_llm.llmapi import GuidedDecodingParams

from backends.finite_params import finite_params
from backends.json_schema import explicit_json
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

NO_END_ID = -1

_WHOLE_PROMPT = 2**31 - 1
"""The engine takes the prompt's length if that is less."""

_REGEX_CHARACTERS = re.compile(r"[\\.^$|?*+()\[\]{}]")
"""Characters that need a backslash. xgrammar and llguidance do not support all the escapes of `re.escape`."""


def engine_sampling_params(
    params: SamplingParams, *, max_tokens: int, min_tokens: int, eos_token_ids: tuple[int, ...], vocab_size: int
) -> tensorrt_llm.SamplingParams:
    """Return a new object, because the engine keeps and modifies it.

    Without `max_tokens`, the engine would apply its own default. It supports one end-of-sequence id, and `min_tokens`
    suppresses only that one. The others become stop ids.
    """
    params = finite_params(params)
    end_id, *others = eos_token_ids or (NO_END_ID,)
    stop_token_ids = [*params.stop_token_ids, *(() if params.ignore_eos else others)]
    return tensorrt_llm.SamplingParams(
        end_id=end_id,
        pad_id=max(end_id, 0),
        max_tokens=max_tokens,
        min_tokens=min_tokens or None,
        ignore_eos=params.ignore_eos,
        stop_token_ids=stop_token_ids or None,
        include_stop_str_in_output=True,  # otherwise the matched id is removed at the end
        logprobs=None if params.logprobs is None else 1,  # only the sampled token; 0 would mean none
        # The engine's own `prompt_logprobs` cover only the most likely tokens and may lack the prompt's.
        return_context_logits=params.prompt_logprobs is not None,
        guided_decoding=_guided_decoding(params.structured_outputs),
        detokenize=False,
        **_randomness(params, vocab_size),
        **_edits(params, vocab_size),
    )


def _randomness(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    if params.greedy:
        return {}  # the engine is greedy if temperature, top_p and top_k are all unset
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k if 0 < params.top_k < vocab_size else 0,
        "min_p": params.min_p or None,
        # Without a seed the engine uses 0, so every request would get the same random numbers.
        "seed": random.getrandbits(63) if params.seed is None else params.seed,
    }


def _edits(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    """Return the parameters that change the logits, without those at their default."""
    edits: dict[str, Any] = {}
    if params.repetition_penalty != 1.0:
        edits["repetition_penalty"] = params.repetition_penalty
    if params.presence_penalty != 0.0:
        edits["presence_penalty"] = params.presence_penalty
    if params.frequency_penalty != 0.0:
        edits["frequency_penalty"] = params.frequency_penalty
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        edits["prompt_ignore_length"] = _WHOLE_PROMPT  # these two count generated tokens only, as in OpenAI's API
    if params.logit_bias:
        bias = torch.zeros(vocab_size)
        bias[list(params.logit_bias)] = torch.tensor(list(params.logit_bias.values()))
        edits["embedding_bias"] = bias
    return edits


def _guided_decoding(wanted: StructuredOutputs | None) -> GuidedDecodingParams | None:
    """Return the engine's parameters. It does not support `choice`, which becomes a regex."""
    if wanted is None:
        return None
    return GuidedDecodingParams(
        json=explicit_json(wanted),
        json_object=wanted.json_object,
        regex=wanted.regex if wanted.choice is None else "|".join(map(_literally, wanted.choice)),
        grammar=wanted.grammar,
    )


def _literally(text: str) -> str:
    return _REGEX_CHARACTERS.sub(r"\\\g<0>", text)
