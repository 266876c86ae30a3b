"""The options that only vLLM has, by LMI's names. Every other engine argument of vLLM is an option too."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lmi_handlers.config.option import NonNegativeFloat, NonNegativeInt, Option

DEFAULT_BATCH_SIZE = 256
"""LMI's default for this engine."""

DEFAULT_MAX_LORAS = 4
"""LMI's default."""

NO_COUNTERPART = {
    "device": "vLLM detects the device itself",
    "preloaded_model": "vLLM has removed it",
    "lora_extra_vocab_size": "vLLM has removed it",
    "long_lora_scaling_factors": "vLLM has removed it",
    "guided_decoding_backend": 'use option.structured_outputs_config={"backend": "xgrammar"}',
    "record_acceptance_rate": "vLLM counts accepted tokens itself",
    "speculative_telemetry": "vLLM counts accepted tokens itself",
}
"""LMI options that the current vLLM has no argument for -> why."""


class VLLMOptions(msgspec.Struct, frozen=True, kw_only=True):
    """LMI's options for vLLM."""

    distributed_executor_backend: Annotated[
        Literal["mp", "uni", "ray"] | None,
        Option(
            "Where vLLM's workers run: `uni` in the engine process, `mp` in processes of their own, `ray` on the nodes of a "
            "Ray cluster (see scaling.md). Defaults to `uni` for one worker and `mp` for several."
        ),
    ] = None
    enforce_eager: Annotated[bool | None, Option("Turns CUDA graphs off.")] = None
    enable_prefix_caching: Annotated[
        bool | None, Option("Reuses the KV cache of prompts that begin in the same way.")
    ] = None
    max_logprobs: Annotated[
        Annotated[int, msgspec.Meta(ge=-1)] | None,
        Option("Maximum number of log probabilities per token; -1 for no limit but the vocabulary's size."),
    ] = None
    cpu_offload_gb_per_gpu: Annotated[
        NonNegativeFloat | None,
        Option("GiB of weights per GPU to keep in CPU memory.", aliases=("option.cpu_offload_gb",)),
    ] = None
    lmcache_auto_config: Annotated[
        bool | None,
        Option(
            "Keeps keys and values that the GPU has no room for in the CPU's memory: by LMCache if it is installed, which "
            "uses a disk too, otherwise by vLLM's own offloading. The sizes follow from what is free (see kv-cache.md). For "
            "other sizes use `option.kv_offloading_size` or `option.kv_transfer_config`."
        ),
    ] = None
    lmcache_config_file: Annotated[
        str | None, Option("LMCache's own configuration, for `option.kv_transfer_config` with one of its connectors.")
    ] = None
    lora_dtype: Annotated[str | None, Option("Data type of the weights of LoRA adapters.")] = None
    fully_sharded_loras: Annotated[bool | None, Option("Splits LoRA adapters fully across GPUs.")] = None
    lora_extra_vocab_size: Annotated[
        NonNegativeInt | None,
        Option("Maximum number of tokens that a LoRA adapter may add to the vocabulary."),
    ] = None
    long_lora_scaling_factors: Annotated[
        str | None,
        Option("Scaling factors of long-context LoRA adapters, separated by commas."),
    ] = None
    device: Annotated[str | None, Option("Type of device to run on.")] = None
    preloaded_model: Annotated[bool | None, Option("Takes a model that is loaded already.")] = None
