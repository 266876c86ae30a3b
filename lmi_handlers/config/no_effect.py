"""Names in the files of LMI users that are deprecated, or accepted without effect."""

from __future__ import annotations

DEPRECATED_KEYS = {
    "option.s3url": "use option.model_id",
    "option.data_type": "use option.dtype",
}
"""Aliases that LMI has deprecated."""

_ONE_PROCESS = "one engine process serves the model"
_NO_MPI = "engines start their own processes, without MPI"
_NO_SCHEDULER = "LMI has removed the scheduler that read it"
_CONVERSION = "it steers the conversion of checkpoints, which is not done here"
_MEMORY = "the engine fails to load where memory does not suffice"
_FRONT_END = "belongs to LMI's Java front end"
_STATUS = "each dialect has fixed status codes"

NO_EFFECT: dict[str, str] = {
    "engine": "the engine is chosen by option.rolling_batch and option.backend",
    "option.mpi_mode": _NO_MPI,
    "option.use_passive_workers": _NO_MPI,
    "option.cluster_size": _NO_MPI,
    "option.async_mode": "every backend takes requests while it generates",
    "option.parallel_loading": _ONE_PROCESS,
    "minWorkers": _ONE_PROCESS,
    "maxWorkers": _ONE_PROCESS,
    "gpu.minWorkers": _ONE_PROCESS,
    "gpu.maxWorkers": _ONE_PROCESS,
    "cpu.minWorkers": _ONE_PROCESS,
    "cpu.maxWorkers": _ONE_PROCESS,
    "max_idle_time": "the engine is never stopped for being idle",
    "load_on_devices": "see option.device_map, option.tensor_parallel_degree and CUDA_VISIBLE_DEVICES",
    "required_memory_mb": _MEMORY,
    "reserved_memory_mb": _MEMORY,
    "gpu.required_memory_mb": _MEMORY,
    "gpu.reserved_memory_mb": _MEMORY,
    "log_request_metric": "metrics need no switch",
    "metrics_aggregation": "metrics are histograms and need no aggregation",
    "option.enable_venv": "the server's own Python environment is used",
    "option.pythonExecutable": "the server's own Python environment is used",
    "option.env": "set environment variables on the container",
    "option.max_output_size": "answers have no size limit",
    "option.load_in_4bit": "deprecated in LMI; use option.quantize with a backend that reads it",
    "option.load_in_8bit": "deprecated in LMI; use option.quantize with a backend that reads it",
    "option.lmcache_auto_config": "LMCache is not provided",
    "option.lmcache_config_file": "LMCache is not provided",
    "option.disable_flash_attn": _NO_SCHEDULER,
    "option.max_sparsity": _NO_SCHEDULER,
    "option.max_splits": _NO_SCHEDULER,
    "option.multi_gpu": _NO_SCHEDULER,
    "option.waiting_steps": _NO_SCHEDULER,
    "option.draft_model_id": "use option.speculative_draft_model with a backend that reads it",
    "option.spec_length": "use option.speculative_length with a backend that reads it",
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
    "chunked_read_timeout": "a request has one time limit, option.predict_timeout",
    "wait_model_loading": "the port is open, and /ping answers, while the model loads",
    "allow_multi_status": "/ping answers 200 or 503",
    "number_of_netty_threads": _FRONT_END,
    "inference_address": "use `lmi serve --host` and `--port`",
    "management_address": _FRONT_END,
    "cluster_address": _FRONT_END,
    "model_url_pattern": _FRONT_END,
    "plugin_folder": "backends and formatters are added by Python entry points",
    "bad_request_http_code": _STATUS,
    "wlm_error_http_code": _STATUS,
    "throttle_error_http_code": _STATUS,
    "timeout_http_code": _STATUS,
    "server_error_http_code": _STATUS,
    "error_rate_wlm": "/ping follows the engine's state",
    "error_rate_server": "/ping follows the engine's state",
    "error_rate_model": "/ping follows the engine's state",
    "error_rate_any": "/ping follows the engine's state",
}
"""Names in LMI users' files that have no effect here -> why."""
