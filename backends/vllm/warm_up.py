"""Compiles what vLLM would compile for the first request that asks for it, while all others wait."""

from __future__ import annotations

import logging

import torch
from vllm.config import VllmConfig
from vllm.v1.sample import sampler

from backends.vllm.errors import one_line

logger = logging.getLogger(__name__)


@torch.inference_mode()  # as vLLM's steps are: what is compiled in another mode is compiled again
def compile_logprobs(config: VllmConfig) -> None:
    """Compile the ranks of log probabilities, also with `enforce_eager`.

    On a CPU, that takes up to 20 s unless they are in torch's cache, and fails without a C++ compiler, which would end
    the engine. They are computed without compiling then. The second model runner has kernels of its own. Workers in
    other processes (several devices, Ray) are not reached: they compile at the first request.
    """
    parallel = config.parallel_config
    if config.use_v2_model_runner or parallel.world_size > 1 or parallel.use_ray:
        return
    logprobs = torch.zeros(2, config.model_config.get_vocab_size(), device=config.device_config.device)
    token_ids = torch.zeros(2, dtype=torch.int64, device=logprobs.device)
    try:
        sampler.Sampler.gather_logprobs(logprobs, 1, token_ids)
    except RuntimeError as error:
        logger.warning("log probabilities are not compiled", extra={"cause": one_line(error)})
        eager = torch.compiler.disable(sampler.batched_count_greater_than)  # type: ignore[no-untyped-call]  # torch's
        sampler.batched_count_greater_than = eager
