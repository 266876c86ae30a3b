"""Differences between vLLM's two model runners.

The second runner consists of Triton kernels and runs on GPUs. The first runs on CPUs, and for features that the second
lacks. A logits processor works with only one of them. The second has buffers of fixed size for each request.
"""

from __future__ import annotations

from collections.abc import Collection

import vllm.envs as engine_environment
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.sample.logit_bias import (
    MAX_NUM_ALLOWED_TOKEN_IDS,
    MAX_NUM_LOGIT_BIAS_TOKENS,
    MAX_NUM_STOP_TOKEN_IDS,
)

from lmi_handlers.core.errors import InvalidRequest

_TYPICAL_V1 = "backends.vllm.typical:TypicalV1"
_TYPICAL_V2 = "backends.vllm.typical:TypicalV2"


def typical_processor(config: VllmConfig) -> str | None:
    """Return the logits processor that implements `typical_p` in this configuration, or None if none can.

    With asynchronous scheduling, any logits processor makes the first runner wait for the previous step's tokens in
    every step, even if no request uses it. With speculative decoding the first runner accepts no processor at all, and
    neither does a model that pools.
    """
    if config.speculative_config is not None or config.model_config.runner_type == "pooling":
        return None
    if config.use_v2_model_runner:
        return _TYPICAL_V2
    return None if config.scheduler_config.async_scheduling else _TYPICAL_V1


def check_buffers(params: SamplingParams) -> None:
    """Raise `InvalidRequest` for a field that exceeds the second runner's buffers.

    vLLM itself would fail during a step, which ends the engine.
    """
    _check("allowed_token_ids", params.allowed_token_ids, MAX_NUM_ALLOWED_TOKEN_IDS)
    _check("logit_bias", params.logit_bias, MAX_NUM_LOGIT_BIAS_TOKENS)
    if params.min_tokens > 0:  # otherwise they are not stored
        _check("stop_token_ids", params.all_stop_token_ids, MAX_NUM_STOP_TOKEN_IDS)
    limit = engine_environment.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    tokens = sum(map(len, params.bad_words_token_ids or ()))
    if tokens > limit:
        raise InvalidRequest(f"must have at most {limit} tokens in all, got {tokens}", field="bad_words")


def _check(field: str, values: Collection[int] | None, limit: int) -> None:
    if values is not None and len(values) > limit:
        raise InvalidRequest(f"must have at most {limit} entries, got {len(values)}", field=field)
