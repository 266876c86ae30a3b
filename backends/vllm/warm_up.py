"""Compiles what vLLM would compile for the first request that asks for it, while all others wait."""

from __future__ import annotations

import logging

import torch
from vllm import LLMEngine
from vllm.v1.sample import sampler
from vllm.v1.worker.worker_base import WorkerBase

from backends.vllm.errors import one_line

logger = logging.getLogger(__name__)


def compile_logprobs(engine: LLMEngine) -> None:
    """Compile the ranks of log probabilities in all workers, also with `enforce_eager`.

    On a CPU, that takes up to 20 s unless they are in torch's cache, and fails without a C++ compiler, which would end
    the engine. They are computed without compiling then. The second model runner has kernels of its own. Workers on Ray
    are left alone, because their nodes need not have this package: they compile at the first request.
    """
    if engine.vllm_config.use_v2_model_runner or engine.vllm_config.parallel_config.use_ray:
        return
    for cause in {*engine.collective_rpc(_compile)} - {None}:
        logger.warning("log probabilities are not compiled", extra={"cause": cause})


@torch.inference_mode()  # as vLLM's steps are: what is compiled in another mode is compiled again
def _compile(worker: WorkerBase) -> str | None:
    """Compile in a worker's process. Returns why it cannot be done, or None."""
    logprobs = torch.zeros(2, worker.vllm_config.model_config.get_vocab_size(), device=worker.device)
    token_ids = torch.zeros(2, dtype=torch.int64, device=logprobs.device)
    try:
        sampler.Sampler.gather_logprobs(logprobs, 1, token_ids)
    except RuntimeError as error:
        eager = torch.compiler.disable(sampler.batched_count_greater_than)  # type: ignore[no-untyped-call]  # torch's
        sampler.batched_count_greater_than = eager
        return one_line(error)
    return None
