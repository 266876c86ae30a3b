"""Names in the files of LMI users that are deprecated, or accepted without effect."""

from __future__ import annotations

DEPRECATED_KEYS = {
    "option.s3url": "use option.model_id",
    "option.data_type": "use option.dtype",
}
"""Aliases that LMI has deprecated."""

_WORKERS = "use minWorkers and maxWorkers, which say how many engines or processes of the model's own code there are"
_NO_MPI = "engines start their own processes and do not need MPI"
_NO_SCHEDULER = "LMI has removed the scheduler that used it"
_CONVERSION = "checkpoints are not converted"
_MEMORY = "memory is not checked in advance; loading fails if there is too little"
_FRONT_END = "only for LMI's Java front end"
_NEURON = "only for AWS Neuron, on which no engine here runs"
_NEURON_NAMES = (
    "all_reduce_dtype",
    "amp",
    "attention_layout",
    "cache_layout",
    "cast_logits_dtype",
    "collectives_layout",
    "compiled_graph_path",
    "context_length_estimate",
    "draft_model_compiled_path",
    "enable_mixed_precision_accumulation",
    "enable_saturate_infinity",
    "fuse_qkv",
    "group_query_attention",
    "load_split_model",
    "model_loader",
    "n_positions",
    "neuron_cc_pipeline_factor",
    "neuron_optimize_level",
    "on_device_embedding",
    "on_device_generation",
    "partition_schema",
    "rolling_batch_strategy",
    "save_mp_checkpoint_path",
    "sequence_parallel",
    "shard_over_sequence",
    "unroll",
)
_RESTARTS = "see option.restart_limit, after which the server exits"
_STATUS = "status codes are fixed by each API"

NO_EFFECT: dict[str, str] = {
    "engine": "the engine is chosen by option.rolling_batch and option.backend",
    "option.mpi_mode": _NO_MPI,
    "option.use_passive_workers": _NO_MPI,
    "option.cluster_size": _NO_MPI,
    "option.async_mode": "every engine accepts requests while it generates, and so does a handle that is async def",
    "option.adapters": "adapters are what is in the folder adapters/; LMI does not read it either",
    "option.parallel_loading": "engines always load at the same time",
    "gpu.minWorkers": _WORKERS,
    "gpu.maxWorkers": _WORKERS,
    "cpu.minWorkers": _WORKERS,
    "cpu.maxWorkers": _WORKERS,
    "load_on_devices": "see option.device_map, option.tensor_parallel_degree and CUDA_VISIBLE_DEVICES",
    "required_memory_mb": _MEMORY,
    "reserved_memory_mb": _MEMORY,
    "gpu.required_memory_mb": _MEMORY,
    "gpu.reserved_memory_mb": _MEMORY,
    "log_request_metric": "metrics are always on",
    "metrics_aggregation": "metrics are histograms, which need no aggregation",
    "option.enable_venv": "the server's own Python environment is used",
    "option.pythonExecutable": "the server's own Python environment is used",
    "option.env": "set environment variables on the container",
    "option.max_output_size": "the size of answers is not limited",
    "option.low_cpu_mem_usage": "weights are always loaded without a second copy in memory",
    "option.paged_attention": "every engine divides its KV cache into blocks",
    "option.use_v2_block_manager": "vLLM has no other block manager any more",
    "fail_fast": _RESTARTS,
    "option.fail_fast": _RESTARTS,
    "option.disable_flash_attn": _NO_SCHEDULER,
    "option.max_sparsity": _NO_SCHEDULER,
    "option.max_splits": _NO_SCHEDULER,
    "option.multi_gpu": _NO_SCHEDULER,
    "option.waiting_steps": _NO_SCHEDULER,
    "option.draft_model_id": "use option.speculative_draft_model with a backend that supports it",
    "option.spec_length": "use option.speculative_length with a backend that supports it",
    "option.use_custom_all_reduce": _CONVERSION,
    "option.multi_block_mode": _CONVERSION,
    "option.use_fused_mlp": _CONVERSION,
    "option.smoothquant_alpha": _CONVERSION,
    "option.smoothquant_per_token": _CONVERSION,
    "option.smoothquant_per_channel": _CONVERSION,
    "option.multi_query_mode": _CONVERSION,
    "option.q_format": _CONVERSION,
    "option.awq_format": _CONVERSION,
    "option.calib_size": _CONVERSION,
    "option.awq_calib_size": _CONVERSION,
    "option.chatglm_model_version": _CONVERSION,
    "option.gpt_model_version": _CONVERSION,
    "option.rotary_base": _CONVERSION,
    "option.rotary_dim": _CONVERSION,
    "option.rotary_scaling_type": _CONVERSION,
    "option.rotary_scaling_factor": _CONVERSION,
    "option.enable_trt_overlap": _CONVERSION,
    "option.baichuan_model_version": _CONVERSION,
    "option.calib_batch_size": _CONVERSION,
    "option.load_by_shard": _CONVERSION,
    "option.logits_dtype": _CONVERSION,
    "option.trtllm_checkpoint_path": _CONVERSION,
    "option.use_fp8_context_fmha": _CONVERSION,
    **{f"option.{name}": _NEURON for name in _NEURON_NAMES},
    "chunked_read_timeout": "use option.predict_timeout, option.response_deadline or option.stream_deadline",
    "wait_model_loading": "the port is open and /ping answers while the model is loading",
    "allow_multi_status": "/ping always returns 200 or 503",
    "number_of_netty_threads": _FRONT_END,
    "inference_address": "use `lmi serve --host` and `--port`",
    "management_address": _FRONT_END,
    "cluster_address": _FRONT_END,
    "model_url_pattern": _FRONT_END,
    "plugin_folder": "plug-ins are Python packages with entry points",
    "bad_request_http_code": _STATUS,
    "wlm_error_http_code": _STATUS,
    "throttle_error_http_code": _STATUS,
    "timeout_http_code": _STATUS,
    "server_error_http_code": _STATUS,
    "error_rate_wlm": "/ping reports the state of the engine",
    "error_rate_server": "/ping reports the state of the engine",
    "error_rate_model": "/ping reports the state of the engine",
    "error_rate_any": "/ping reports the state of the engine",
}
"""Names in LMI users' files that have no effect here -> why."""

_BATCH = "the engine decides by the memory that is free and by option.max_rolling_batch_prefill_tokens"
_ROPE = 'use option.hf_overrides={"rope_scaling": ..} on vLLM, or the model\'s config.json'
_WATERMARK = "the watermark has TGI's default strength"

TGI_NO_EFFECT: dict[str, str] = {
    "VALIDATION_WORKERS": "prompts are tokenised in the web workers; option.web_workers sets their number",
    "WAITING_SERVED_RATIO": _BATCH,
    "MAX_BATCH_TOTAL_TOKENS": f"the size of the KV cache limits a batch, option.kv_cache_memory_bytes; {_BATCH}",
    "MAX_WAITING_TOKENS": "prompts are processed in chunks between the steps of the others",
    "CUDA_GRAPHS": "the engine chooses the sizes; option.enforce_eager=true turns CUDA graphs off",
    "SHARD_UDS_PATH": "the engine's processes find each other",
    "DISABLE_CUSTOM_KERNELS": "the engine chooses its kernels",
    "ROPE_SCALING": _ROPE,
    "ROPE_FACTOR": _ROPE,
    "WATERMARK_GAMMA": _WATERMARK,
    "WATERMARK_DELTA": _WATERMARK,
    "TOKENIZER_CONFIG_PATH": "the model's own tokenizer_config.json is read; option.chat_template sets a template",
    "DISABLE_GRAMMAR_SUPPORT": "grammars cost nothing unless a request has one",
    "LORA_ADAPTERS": "put each adapter in a folder adapters/<name> beside serving.properties, and set option.enable_lora=true",
    "ENABLE_PREFILL_LOGPROBS": "a request that asks for them gets them",
    "MESSAGES_API_ENABLED": "the invoke routes take chats as well as prompts",
    "USAGE_STATS": "nothing is reported to anyone",
    "OTLP_ENDPOINT": (
        "TGI sends gRPC, this server HTTP: set OTEL_EXPORTER_OTLP_ENDPOINT to the collector's URL for that, such as "
        "http://collector:4318"
    ),
    "GRACEFUL_TERMINATION_TIMEOUT": "requests in flight may finish, for up to 23 s",
}
"""Variables of the Text Generation Inference container that have no effect here -> why."""

TGI_CHANGES_ANSWERS = (
    "LORA_ADAPTERS",
    "ROPE_SCALING",
    "ROPE_FACTOR",
    "TOKENIZER_CONFIG_PATH",
    "WATERMARK_GAMMA",
    "WATERMARK_DELTA",
)
"""Those of them without which answers differ from TGI's."""
