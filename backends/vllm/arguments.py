"""How options of serving.properties relate to vLLM's engine arguments. Needs no vLLM."""

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

OURS = {
    "model": "use option.model_id",
    "revision": "use option.revision",
    "served_model_name": "use option.model_name",
    "allowed_media_domains": "the server fetches images itself",
    "tokenizer": "answers are decoded with the model's own tokenizer",
    "skip_tokenizer_init": "grammars need the tokenizer",
    "disable_log_stats": "the server has metrics of its own",
    "use_tqdm_on_load": "the server logs the progress",
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
}
"""Engine arguments that must keep their default, because one engine is stepped in this process -> why.

Most other values would make vLLM wait for peers that never start.
"""

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
