"""vLLM 0.32, driven step by step in the engine process."""

from __future__ import annotations

import logging
import os

LOG_LEVEL = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
"""vLLM's warnings are mostly about its internals, so they are off. `VLLM_LOGGING_LEVEL` brings them back."""

logging.getLogger("vllm").setLevel(LOG_LEVEL)  # must happen before vLLM is imported, because the import already logs

REQUIRES = ("vllm", "llguidance")
PASSES_OPTIONS = True

UNSUPPORTED = {"watermark": "vLLM has a watermark of another kind, chosen for the whole engine"}

CONDITIONAL = {
    "typical_p": "not supported with speculative decoding, nor with `option.async_scheduling` on the first model runner",
    "prompt_logprobs": "not supported with `option.enable_lora` on a CPU",
    "seed": "not supported on a CPU with `option.enable_chunked_prefill=true`",
    "allowed_token_ids": "at most 1024 on the second model runner",
    "logit_bias": "at most 1024 tokens on the second model runner",
    "stop_token_ids": "at most 128 together with `min_tokens` on the second model runner",
    "bad_words": "at most 128, and on the second model runner at most 1024 tokens in total",
}
"""Field -> when it is rejected although the table says yes.

vLLM uses its second model runner on GPUs and the first on CPUs.
"""

ONLY_ON_A_GPU = (
    "Compiled kernels, quantisation and CUDA graphs. The tests run the second model runner on a CPU with its Triton kernels "
    "interpreted, and let vLLM validate its configuration as if there were eight H100s.",
    "Asynchronous scheduling, which vLLM turns on for GPUs: a step returns the tokens of the previous one, and one batch is "
    "still in flight when the last request ends.",
    "Loading time with `torch.compile` and CUDA graphs, compared with `option.model_loading_timeout`.",
    "More than one GPU: NCCL, and workers that die inside a collective operation.",
    "Memory: whether `option.gpu_memory_utilization` leaves enough for prompt log probabilities and images. Running out of "
    "memory during a step ends the engine, which is then restarted.",
    "Images: vLLM may run a model's processor on the GPU while the engine is stepping.",
    "Samples: the second model runner has its own random generator, so the same seed gives other tokens than on a CPU. It "
    "applies `typical_p` before `min_p` instead of after it.",
)
"""What the tests do not cover, because they run without a GPU."""
