"""Translates options of serving.properties to vLLM's engine arguments. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES = {
    "max_rolling_batch_size": "max_num_seqs",
    "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
    "tensor_parallel_degree": "tensor_parallel_size",
    "pipeline_parallel_degree": "pipeline_parallel_size",
    "quantize": "quantization",
    "cpu_offload_gb_per_gpu": "cpu_offload_gb",
}
"""Our option -> the engine argument that it sets, if that has a different name."""

METHODS = {"bitsandbytes4": "bitsandbytes"}
"""Our value of `option.quantize`, which is LMI's -> vLLM's, if they differ."""

QUANTIZATIONS = (
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "compressed-tensors", "quark", "torchao"),
    *("inc", "fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "mxfp4", "nvfp4_per_token"),
    *("int8_per_channel_weight_only", "experts_int8", "moe_wna16", "humming", "online", "deepseek_v4_fp8"),
    *("gpt_oss_mxfp4", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "fbgemm_fp8", "fp_quant"),
)
"""The values of `option.quantize`. vLLM's plug-ins add more, so vLLM itself checks it if it is named."""

OURS = {
    "model": "use option.model_id",
    "revision": "use option.revision",
    "served_model_name": "the server names the model",
    "allowed_media_domains": "the server fetches images itself",
    "tokenizer": "answers are decoded with the model's own tokenizer",
    "skip_tokenizer_init": "grammars need the tokenizer",
    "reasoning_parser": "grammars apply from the first token on",
    "logits_processors": "typical_p is one of them",
}
"""Engine arguments that the server sets -> why, or what to use instead."""

ONE_ENGINE = "vLLM runs without data parallelism; minWorkers sets the number of engines"
_ONE_MACHINE = "only option.distributed_executor_backend=ray runs workers on other machines"
_TASK = "option.task decides what the engine computes: text-embedding, text-ranking, or else text generation"
_QUEUE = "requests wait in the server's queue, not in vLLM's; use job_queue_size"

ALONE: Mapping[str, str] = {
    "data_parallel_size": ONE_ENGINE,
    "data_parallel_rank": ONE_ENGINE,
    "data_parallel_start_rank": ONE_ENGINE,
    "data_parallel_size_local": ONE_ENGINE,
    "data_parallel_address": ONE_ENGINE,
    "data_parallel_rpc_port": ONE_ENGINE,
    "data_parallel_hybrid_lb": ONE_ENGINE,
    "data_parallel_external_lb": ONE_ENGINE,
    "data_parallel_multi_port_external_lb": ONE_ENGINE,
    "data_parallel_backend": ONE_ENGINE,
    "enable_elastic_ep": ONE_ENGINE,
    "elastic_ep_max_dp_size": ONE_ENGINE,
    "enable_fault_tolerance": ONE_ENGINE,
    "nnodes": _ONE_MACHINE,
    "node_rank": _ONE_MACHINE,
    "runner": _TASK,
    "convert": _TASK,
    "mm_encoder_only": "only text generation is supported",
    "max_num_queued_reqs": _QUEUE,
    "max_num_queued_tokens": _QUEUE,
    "return_sampling_mask": "no API returns the mask",
}
"""Engine arguments that must keep their default, because one engine is stepped in this process -> why.

Most other values would make vLLM wait for peers that never start.
"""

_DEFAULTS = "a request's defaults come from generation_config.json with option.generation_config=auto"
_IMAGES = "the server fetches and decodes images itself, and vLLM caches none of them"
_TEXT_ONLY = "the server sends token ids and images to vLLM, and nothing else"
_METRICS = "the server has metrics of its own"

NO_EFFECT: Mapping[str, str] = {
    "override_generation_config": _DEFAULTS,
    "allowed_local_media_path": _IMAGES,
    "media_io_kwargs": _IMAGES,
    "mm_processor_cache_gb": _IMAGES,
    "mm_processor_cache_type": _IMAGES,
    "mm_shm_cache_max_object_size_mb": _IMAGES,
    "mm_ipc_gpu_memory_gb": _IMAGES,
    "mm_tensor_ipc": _IMAGES,
    "enable_prompt_embeds": _TEXT_ONLY,
    "enable_mm_embeds": _TEXT_ONLY,
    "interleave_mm_strings": "an image is where the chat template puts it",
    "default_mm_loras": "a request names its adapter",
    "io_processor_plugin": "only vLLM's own server calls it",
    "renderer_num_workers": "the web workers render prompts",
    "reasoning_parser_plugin": "option.reasoning_parser names one of the server's formats",
    "shutdown_timeout": "the server drains requests itself",
    "enable_return_routed_experts": "no API returns the experts",
    "aggregate_engine_logging": _METRICS,
    "show_hidden_metrics_for_version": _METRICS,
    "kv_cache_metrics": _METRICS,
    "kv_cache_metrics_sample": _METRICS,
    "cudagraph_metrics": _METRICS,
    "disable_log_stats": _METRICS,
    "use_tqdm_on_load": "the server logs the progress",
    "enable_mfu_metrics": _METRICS,
    "enable_mm_processor_stats": _METRICS,
    "custom_histogram_buckets": _METRICS,
}
"""Engine arguments that only vLLM's own server and its offline class read, so that they have no effect here -> why."""

_REMOVED = "vLLM has removed it"
_NEVER_LOGGED = "prompts and answers are never logged"

REMOVED: Mapping[str, str] = {
    "swap_space": _REMOVED,
    "num_scheduler_steps": _REMOVED,
    "multi_step_stream_outputs": _REMOVED,
    "num_lookahead_slots": _REMOVED,
    "scheduler_delay_factor": _REMOVED,
    "preemption_mode": _REMOVED,
    "disable_async_output_proc": _REMOVED,
    "max_context_len_to_capture": _REMOVED,
    "max_seq_len_to_capture": _REMOVED,
    "worker_use_ray": "use option.distributed_executor_backend=ray",
    "engine_use_ray": _REMOVED,
    "disable_log_requests": _NEVER_LOGGED,
    "enable_log_requests": _NEVER_LOGGED,
}
"""Arguments of older versions of vLLM and of its server, as in files for LMI, that change no answer -> why they do nothing."""

REPLACED: Mapping[str, str] = {
    "rope_scaling": 'use option.hf_overrides={"rope_scaling": ..}',
    "rope_theta": 'use option.hf_overrides={"rope_theta": ..}',
    "speculative_model": "use option.speculative_config",
    "num_speculative_tokens": "use option.speculative_config",
    "override_pooler_config": "use option.pooler_config",
}
"""Arguments of older versions of vLLM that do change something -> what to use instead."""

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
