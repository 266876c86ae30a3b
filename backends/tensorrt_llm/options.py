"""The options that only TensorRT-LLM has."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.config.option import Fraction, NonNegativeInt, Option, PositiveInt

DEFAULT_BATCH_SIZE = 256
"""LMI's default for this engine."""

NO_COUNTERPART = dict.fromkeys(
    (
        "max_num_sequences",
        "batching_type",
        "moe_backend",
        "normalize_log_probs",
        "auto_parallel",
        "auto_parallel_world_size",
    ),
    "TensorRT-LLM 1.2 has no setting for it",
)
"""LMI options without a public argument in TensorRT-LLM 1.2 on the PyTorch runtime -> why they have no effect."""


class TensorRTLLMOptions(msgspec.Struct, frozen=True, kw_only=True):
    """LMI's options for TensorRT-LLM."""

    tokenizer: Annotated[str | None, Option("Tokenizer to use instead of the model's own.")] = None
    skip_tokenizer_init: Annotated[bool | None, Option("Starts the engine without its tokenizer.")] = None
    max_input_len: Annotated[PositiveInt | None, Option("Maximum number of prompt tokens.")] = None
    max_output_len: Annotated[PositiveInt | None, Option("Maximum number of generated tokens.")] = None
    max_num_tokens: Annotated[PositiveInt | None, Option("Maximum number of tokens in one engine step.")] = None
    max_num_sequences: Annotated[PositiveInt | None, Option("Maximum number of sequences in the engine.")] = None
    max_beam_width: Annotated[PositiveInt | None, Option("Maximum width of a beam search.")] = None
    tokens_per_block: Annotated[PositiveInt | None, Option("Number of tokens in a block of the KV cache.")] = None
    batching_type: Annotated[str | None, Option("Kind of batching.")] = None
    batch_scheduler_policy: Annotated[str | None, Option("Policy by which requests join the batch.")] = None
    kv_cache_free_gpu_mem_fraction: Annotated[
        Fraction | None,
        Option(
            "Fraction of the free GPU memory to use for the KV cache.", aliases=("option.free_gpu_memory_fraction",)
        ),
    ] = None
    enable_kv_cache_reuse: Annotated[
        bool | None,
        Option("Reuses the KV cache of prompts that begin in the same way.", aliases=("option.enable_block_reuse",)),
    ] = None
    enable_overlap_scheduler: Annotated[bool | None, Option("Schedules the next step while the current one runs.")] = (
        None
    )
    use_cuda_graph: Annotated[bool | None, Option("Uses CUDA graphs for decoding.")] = None
    attn_backend: Annotated[str | None, Option("Name of the attention kernels.")] = None
    normalize_log_probs: Annotated[bool | None, Option("Normalises log probabilities.")] = None
    gather_generation_logits: Annotated[bool | None, Option("Keeps the logits of generated tokens.")] = None
    context_parallel_size: Annotated[PositiveInt | None, Option("Number of GPUs that a context is split across.")] = (
        None
    )
    moe_tensor_parallel_size: Annotated[
        PositiveInt | None, Option("Number of GPUs that each expert is split across.")
    ] = None
    moe_expert_parallel_size: Annotated[
        PositiveInt | None, Option("Number of GPUs that the experts are distributed over.")
    ] = None
    enable_attention_dp: Annotated[bool | None, Option("Uses data parallelism for attention.")] = None
    auto_parallel: Annotated[bool | None, Option("Chooses how to split the model across GPUs.")] = None
    auto_parallel_world_size: Annotated[PositiveInt | None, Option("Number of GPUs for `option.auto_parallel`.")] = None
    max_tokens: Annotated[PositiveInt | None, Option("Maximum number of tokens in the KV cache.")] = None
    max_attention_window: Annotated[
        str | None, Option("Attention window of each layer, in tokens, separated by commas.")
    ] = None
    sink_token_length: Annotated[
        NonNegativeInt | None, Option("Number of first tokens that stay in the attention window.")
    ] = None
    host_cache_size: Annotated[NonNegativeInt | None, Option("Size of the KV cache in CPU memory, in bytes.")] = None
    onboard_blocks: Annotated[
        bool | None, Option("Copies offloaded cache blocks back to the GPU before they are used.")
    ] = None
    cross_kv_cache_fraction: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None, Option("Fraction of the KV cache for cross attention.")
    ] = None
    secondary_offload_min_priority: Annotated[
        NonNegativeInt | None, Option("Minimum priority of cache blocks that are offloaded to CPU memory.")
    ] = None
    event_buffer_max_size: Annotated[NonNegativeInt | None, Option("Maximum number of cache events kept.")] = None
