"""Environment variables of SageMaker, LMI and TGI that set options."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lmi_handlers.config.option import BOOLEANS, text_of


def _mebibytes(text: str) -> str:
    """Convert to bytes. SageMaker's 0 means "streamed to the container", which sets no limit."""
    return "" if text == "0" else str(int(text) * 1024 * 1024) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else text


def _not(text: str) -> str:
    value = BOOLEANS.get(text.lower())
    return text if value is None else text_of(not value)


def _shards(text: str) -> str:
    return {"true": "max", "false": "1"}.get(text.lower(), text)


def _quantization(text: str) -> str:
    """Convert TGI's names of methods to LMI's."""
    return {
        "bitsandbytes": "bitsandbytes8",
        "bitsandbytes-nf4": "bitsandbytes4",
        "bitsandbytes-fp4": "bitsandbytes4",
    }.get(text, text)


def _kv_cache_dtype(text: str) -> str:
    """Convert TGI's name of an 8-bit type to vLLM's."""
    return "fp8_e4m3" if text == "fp8_e4m3fn" else text


@dataclass(frozen=True)
class Variable:
    """An environment variable for the field `option`. `convert` turns its text into the file's."""

    option: str
    convert: Callable[[str], str] = str


@dataclass(frozen=True)
class Given:
    """The setting of another server's variable: `key` in serving.properties and its text. Without a key, `note` says why."""

    variable: str
    key: str = ""
    text: str = ""
    note: str = ""


SM_VLLM = "SM_VLLM_"
"""Begins the variables of SageMaker's image of vLLM, which are flags of `vllm serve`."""


def _no_restarts(text: str) -> str:
    """Convert "false" to 0 restarts. Anything else leaves the number as it is."""
    return "0" if BOOLEANS.get(text.lower()) is False else ""


# If two variables in one table set the same option, the first one takes precedence.

OVERRIDES: dict[str, Variable] = {
    "SAGEMAKER_MAX_REQUEST_SIZE": Variable("max_request_size"),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": Variable("max_request_size", _mebibytes),
    "SAGEMAKER_NUM_MODEL_WORKERS": Variable("web_workers"),
    "SAGEMAKER_STARTUP_TIMEOUT": Variable("model_loading_timeout"),
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": Variable("predict_timeout"),
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": Variable("default_accept"),
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": Variable("enable_stateful_sessions"),
    "SAGEMAKER_SESSIONS_EXPIRATION": Variable("sessions_expiration"),
    "SAGEMAKER_SESSIONS_PATH": Variable("sessions_path"),
    "SERVING_MAX_REQUEST_SIZE": Variable("max_request_size"),
    "SERVING_CORS_ALLOWED_ORIGIN": Variable("cors_allowed_origin"),
}
"""Variables that take precedence over serving.properties: SageMaker's own, then LMI's for the whole server."""

NATIVE: dict[str, Variable] = {
    "HF_MODEL_ID": Variable("model_id"),
    "HF_REVISION": Variable("revision"),
    "HF_TASK": Variable("task"),
    "DJL_ENTRY_POINT": Variable("entry_point"),
    "TENSOR_PARALLEL_DEGREE": Variable("tensor_parallel_degree"),
    "PIPELINE_PARALLEL_DEGREE": Variable("pipeline_parallel_degree"),
    "MODEL_LOADING_TIMEOUT": Variable("model_loading_timeout"),
    "PREDICT_TIMEOUT": Variable("predict_timeout"),
    "SERVING_BATCH_SIZE": Variable("batch_size"),
    "SERVING_MAX_BATCH_DELAY": Variable("max_batch_delay"),
    "SERVING_JOB_QUEUE_SIZE": Variable("job_queue_size"),
    "SERVING_MIN_WORKERS": Variable("min_workers"),
    "SERVING_MAX_WORKERS": Variable("max_workers"),
    "SERVING_MAX_IDLE_TIME": Variable("max_idle_time"),
    "SERVING_RETRY_THRESHOLD": Variable("restart_limit"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": Variable("allow_runtime_lora_updating"),
    # SageMaker's samples, and its standard for containers
    "SAGEMAKER_MAX_NUMBER_OF_ADAPTERS_IN_MEMORY": Variable("max_cpu_loras"),
    "PROCESS_AUTO_RECOVERY": Variable("restart_limit", _no_restarts),
    "PROCESS_MAX_START_RETRIES": Variable("restart_limit"),
    "STANDARD_AUTO_INSTALL_REQ": Variable("install_requirements"),
}
"""Variables of LMI, vLLM and SageMaker for settings of a model. serving.properties and `OPTION_*` take precedence over them."""

TGI: dict[str, Variable] = {
    "MODEL_ID": Variable("model_id"),
    "REVISION": Variable("revision"),
    "SPECULATE": Variable("prompt_lookup_num_tokens"),
    "HF_MODEL_REVISION": Variable("revision"),
    "HF_MODEL_QUANTIZE": Variable("quantize", _quantization),
    "HF_MODEL_TRUST_REMOTE_CODE": Variable("trust_remote_code"),
    "SM_NUM_GPUS": Variable("tensor_parallel_degree"),
    "NUM_SHARD": Variable("tensor_parallel_degree"),
    "SHARDED": Variable("tensor_parallel_degree", _shards),
    "DTYPE": Variable("dtype"),
    "KV_CACHE_DTYPE": Variable("kv_cache_dtype", _kv_cache_dtype),
    "QUANTIZE": Variable("quantize", _quantization),
    "TRUST_REMOTE_CODE": Variable("trust_remote_code"),
    "MAX_CONCURRENT_REQUESTS": Variable("job_queue_size"),
    "MAX_BATCH_PREFILL_TOKENS": Variable("max_rolling_batch_prefill_tokens"),
    "MAX_BATCH_SIZE": Variable("max_rolling_batch_size"),
    "MAX_TOTAL_TOKENS": Variable("max_model_len"),
    "MAX_INPUT_TOKENS": Variable("max_input_tokens"),
    "MAX_INPUT_LENGTH": Variable("max_input_tokens"),
    "MAX_BEST_OF": Variable("max_best_of"),
    "MAX_STOP_SEQUENCES": Variable("max_stop_sequences"),
    "MAX_TOP_N_TOKENS": Variable("max_top_n_tokens"),
    "MAX_CLIENT_BATCH_SIZE": Variable("max_client_batch_size"),
    "PAYLOAD_LIMIT": Variable("max_request_size"),
    "CORS_ALLOW_ORIGIN": Variable("cors_allowed_origin"),
    "COMPUTE_TYPE": Variable("compute_type"),
    "ENABLE_CUDA_GRAPHS": Variable("enforce_eager", _not),
    "CUDA_MEMORY_FRACTION": Variable("gpu_memory_utilization"),
}
"""Variables of the Text Generation Inference container and its launcher. They have the lowest precedence."""
