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
    "option.load_in_4bit": "deprecated in LMI; use option.quantize with a backend that supports it",
    "option.load_in_8bit": "deprecated in LMI; use option.quantize with a backend that supports it",
    "option.lmcache_auto_config": "LMCache is not supported",
    "option.lmcache_config_file": "LMCache is not supported",
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
