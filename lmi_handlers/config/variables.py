"""Environment variables of SageMaker, LMI and TGI that set options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lmi_handlers.config.no_effect import TGI_NO_EFFECT
from lmi_handlers.config.option import BOOLEANS, text_of
from lmi_handlers.config.scripts import PROGRAM, SUBMIT_DIRECTORY


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
class OptionVariable:
    """An environment variable for the field `option`. `convert` turns its text into the file's."""

    option: str
    convert: Callable[[str], str] = str


@dataclass(frozen=True)
class Given:
    """The setting of another server's variable: `key` in serving.properties and its text. Without a key, `note` says why.

    `changes_answers` is true if answers may differ because of that. `hint` is the text of another warning.
    """

    variable: str
    key: str = ""
    text: str = ""
    note: str = ""
    changes_answers: bool = False
    hint: str = ""


SM_VLLM = "SM_VLLM_"
"""Begins the variables of SageMaker's image of vLLM, which are flags of `vllm serve`."""

SM_VLLM_DEFAULTS = f"{SM_VLLM}*"
"""Stands for these variables as the source of `VLLM_DEFAULTS`."""

VLLM_DEFAULTS = {"option.generation_config": "auto"}
"""vLLM's defaults that differ from those of options here, and change answers."""


def _no_restarts(text: str) -> str:
    """Convert "false" to 0 restarts. Anything else leaves the number as it is."""
    return "0" if BOOLEANS.get(text.lower()) is False else ""


# If two variables in one table set the same option, the first one takes precedence.

OVERRIDES: dict[str, OptionVariable] = {
    "SAGEMAKER_MAX_REQUEST_SIZE": OptionVariable("max_request_size"),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": OptionVariable("max_request_size", _mebibytes),
    "SAGEMAKER_NUM_MODEL_WORKERS": OptionVariable("web_workers"),
    "SAGEMAKER_STARTUP_TIMEOUT": OptionVariable("model_loading_timeout"),
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": OptionVariable("predict_timeout"),
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": OptionVariable("default_accept"),
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": OptionVariable("enable_stateful_sessions"),
    "SAGEMAKER_SESSIONS_EXPIRATION": OptionVariable("sessions_expiration"),
    "SAGEMAKER_SESSIONS_PATH": OptionVariable("sessions_path"),
    "SERVING_MAX_REQUEST_SIZE": OptionVariable("max_request_size"),
    "SERVING_CORS_ALLOWED_ORIGIN": OptionVariable("cors_allowed_origin"),
}
"""Variables that take precedence over serving.properties: SageMaker's own, then LMI's for the whole server."""

NATIVE: dict[str, OptionVariable] = {
    "HF_MODEL_ID": OptionVariable("model_id"),
    "HF_REVISION": OptionVariable("revision"),
    "HF_TASK": OptionVariable("task"),
    "DJL_ENTRY_POINT": OptionVariable("entry_point"),
    "TENSOR_PARALLEL_DEGREE": OptionVariable("tensor_parallel_degree"),
    "PIPELINE_PARALLEL_DEGREE": OptionVariable("pipeline_parallel_degree"),
    "MODEL_LOADING_TIMEOUT": OptionVariable("model_loading_timeout"),
    "PREDICT_TIMEOUT": OptionVariable("predict_timeout"),
    "SERVING_BATCH_SIZE": OptionVariable("batch_size"),
    "SERVING_MAX_BATCH_DELAY": OptionVariable("max_batch_delay"),
    "SERVING_JOB_QUEUE_SIZE": OptionVariable("job_queue_size"),
    "SERVING_MIN_WORKERS": OptionVariable("min_workers"),
    "SERVING_MAX_WORKERS": OptionVariable("max_workers"),
    "SERVING_MAX_IDLE_TIME": OptionVariable("max_idle_time"),
    "SERVING_RETRY_THRESHOLD": OptionVariable("restart_limit"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": OptionVariable("allow_runtime_lora_updating"),
    # SageMaker's samples, and its standard for containers
    "SAGEMAKER_MAX_NUMBER_OF_ADAPTERS_IN_MEMORY": OptionVariable("max_cpu_loras"),
    "PROCESS_AUTO_RECOVERY": OptionVariable("restart_limit", _no_restarts),
    "PROCESS_MAX_START_RETRIES": OptionVariable("restart_limit"),
    "STANDARD_AUTO_INSTALL_REQ": OptionVariable("install_requirements"),
}
"""Variables of LMI, vLLM and SageMaker for settings of a model. serving.properties and `OPTION_*` take precedence over them."""

TGI: dict[str, OptionVariable] = {
    "MODEL_ID": OptionVariable("model_id"),
    "REVISION": OptionVariable("revision"),
    "SPECULATE": OptionVariable("prompt_lookup_num_tokens"),
    "HF_MODEL_REVISION": OptionVariable("revision"),
    "HF_MODEL_QUANTIZE": OptionVariable("quantize", _quantization),
    "HF_MODEL_TRUST_REMOTE_CODE": OptionVariable("trust_remote_code"),
    "SM_NUM_GPUS": OptionVariable("tensor_parallel_degree"),
    "NUM_SHARD": OptionVariable("tensor_parallel_degree"),
    "SHARDED": OptionVariable("tensor_parallel_degree", _shards),
    "DTYPE": OptionVariable("dtype"),
    "KV_CACHE_DTYPE": OptionVariable("kv_cache_dtype", _kv_cache_dtype),
    "QUANTIZE": OptionVariable("quantize", _quantization),
    "TRUST_REMOTE_CODE": OptionVariable("trust_remote_code"),
    "MAX_CONCURRENT_REQUESTS": OptionVariable("job_queue_size"),
    "MAX_BATCH_PREFILL_TOKENS": OptionVariable("max_rolling_batch_prefill_tokens"),
    "MAX_BATCH_SIZE": OptionVariable("max_rolling_batch_size"),
    "MAX_TOTAL_TOKENS": OptionVariable("max_model_len"),
    "MAX_INPUT_TOKENS": OptionVariable("max_input_tokens"),
    "MAX_INPUT_LENGTH": OptionVariable("max_input_tokens"),
    "MAX_BEST_OF": OptionVariable("max_best_of"),
    "MAX_STOP_SEQUENCES": OptionVariable("max_stop_sequences"),
    "MAX_TOP_N_TOKENS": OptionVariable("max_top_n_tokens"),
    "MAX_CLIENT_BATCH_SIZE": OptionVariable("max_client_batch_size"),
    "PAYLOAD_LIMIT": OptionVariable("max_request_size"),
    "CORS_ALLOW_ORIGIN": OptionVariable("cors_allowed_origin"),
    "COMPUTE_TYPE": OptionVariable("compute_type"),
    "ENABLE_CUDA_GRAPHS": OptionVariable("enforce_eager", _not),
    "CUDA_MEMORY_FRACTION": OptionVariable("gpu_memory_utilization"),
}
"""Variables of the Text Generation Inference container and its launcher. They have the lowest precedence."""

TGI_ALONE = (
    *("NUM_SHARD", "SHARDED", "MAX_TOTAL_TOKENS", "MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH", "MAX_BEST_OF"),
    *("MAX_STOP_SEQUENCES", "MAX_TOP_N_TOKENS", "MAX_CLIENT_BATCH_SIZE", "MAX_BATCH_TOTAL_TOKENS"),
    *("WAITING_SERVED_RATIO", "MAX_WAITING_TOKENS", "LORA_ADAPTERS", "MESSAGES_API_ENABLED"),
)
"""Variables that show that a server has been TGI's. LMI's container reads some of the others, or their names are common."""


_PREFIXES = ("OPTION_", "SERVING_", SM_VLLM)


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that set options of a model or name its code."""
    named = {*OVERRIDES, *NATIVE, *TGI, *TGI_NO_EFFECT, PROGRAM, SUBMIT_DIRECTORY}
    return {name: text for name, text in environ.items() if name not in named and not name.startswith(_PREFIXES)}
