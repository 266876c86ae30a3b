"""serving.properties and the environment: which source takes precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving_properties import load, setting

from backends import declaration, registry
from lmi_handlers.config.no_effect import NO_EFFECT
from lmi_handlers.config.properties import load_properties
from lmi_handlers.config.variables import NATIVE, OVERRIDES, TGI

OPTIONS = registry().options
KEYS = registry().keys
TRANSFORMERS = declaration("transformers")


@pytest.mark.parametrize(
    ("name", "file", "environ", "value", "source"),
    [
        ("dtype", "option.dtype=fp16", {"OPTION_DTYPE": "bf16"}, "fp16", "serving.properties"),
        ("dtype", "option.dtype=", {"OPTION_DTYPE": "bf16"}, "bf16", "environment variable OPTION_DTYPE"),
        ("model_id", "option.model_id=a/b", {"HF_MODEL_ID": "c/d"}, "a/b", "serving.properties"),
        ("model_id", "", {"HF_MODEL_ID": "c/d"}, "c/d", "environment variable HF_MODEL_ID"),
        ("model_id", "", {"HF_MODEL_ID": "c", "OPTION_MODEL_ID": "e"}, "e", "environment variable OPTION_MODEL_ID"),
        ("revision", "", {"HF_REVISION": "v1", "HF_MODEL_REVISION": "v2"}, "v1", "environment variable HF_REVISION"),
        ("revision", "", {"HF_MODEL_REVISION": "v2"}, "v2", "environment variable HF_MODEL_REVISION"),
        ("task", "", {"HF_TASK": "text-generation"}, "text-generation", "environment variable HF_TASK"),
        (
            "tensor_parallel_degree",
            "option.tensor_parallel_degree=2",
            {"TENSOR_PARALLEL_DEGREE": "4", "SM_NUM_GPUS": "8"},
            2,
            "serving.properties",
        ),
        (
            "tensor_parallel_degree",
            "",
            {"SM_NUM_GPUS": "8", "TENSOR_PARALLEL_DEGREE": "4"},
            4,
            "environment variable TENSOR_PARALLEL_DEGREE",
        ),
        ("tensor_parallel_degree", "", {"SM_NUM_GPUS": "8"}, 8, "environment variable SM_NUM_GPUS"),
        ("predict_timeout", "", {"PREDICT_TIMEOUT": "9"}, 9, "environment variable PREDICT_TIMEOUT"),
        ("predict_timeout", "option.predict_timeout=7", {"PREDICT_TIMEOUT": "9"}, 7, "serving.properties"),
        (
            "predict_timeout",
            "option.predict_timeout=7",
            {"PREDICT_TIMEOUT": "9", "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "8"},
            8,
            "environment variable SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS",
        ),
        (
            "model_loading_timeout",
            "option.model_loading_timeout=7",
            {"SAGEMAKER_STARTUP_TIMEOUT": "8", "MODEL_LOADING_TIMEOUT": "9"},
            8,
            "environment variable SAGEMAKER_STARTUP_TIMEOUT",
        ),
        ("model_loading_timeout", "", {"MODEL_LOADING_TIMEOUT": "9"}, 9, "environment variable MODEL_LOADING_TIMEOUT"),
        (
            "max_request_size",
            "max_request_size=5",
            {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6"},
            6 * 2**20,
            "environment variable SAGEMAKER_MAX_PAYLOAD_IN_MB",
        ),
        (
            "max_request_size",
            "",
            {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6", "SAGEMAKER_MAX_REQUEST_SIZE": "7", "SERVING_MAX_REQUEST_SIZE": "8"},
            7,
            "environment variable SAGEMAKER_MAX_REQUEST_SIZE",
        ),
        (
            "max_request_size",
            "max_request_size=5",
            {"SERVING_MAX_REQUEST_SIZE": "8"},
            8,
            "environment variable SERVING_MAX_REQUEST_SIZE",
        ),
        ("max_request_size", "max_request_size=5", {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0"}, 5, "serving.properties"),
        (
            "web_workers",
            "option.web_workers=2",
            {"SAGEMAKER_NUM_MODEL_WORKERS": "3"},
            3,
            "environment variable SAGEMAKER_NUM_MODEL_WORKERS",
        ),
        (
            "default_accept",
            "option.default_accept=text/plain",
            {"SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "application/json"},
            "application/json",
            "environment variable SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
        ),
        (
            "cors_allowed_origin",
            "cors_allowed_origin=https://a.example",
            {"SERVING_CORS_ALLOWED_ORIGIN": "https://b.example"},
            "https://b.example",
            "environment variable SERVING_CORS_ALLOWED_ORIGIN",
        ),
        ("restart_limit", "", {"PROCESS_AUTO_RECOVERY": "false"}, 0, "environment variable PROCESS_AUTO_RECOVERY"),
        (
            "restart_limit",
            "",
            {"PROCESS_AUTO_RECOVERY": "true", "PROCESS_MAX_START_RETRIES": "7"},
            7,
            "environment variable PROCESS_MAX_START_RETRIES",
        ),
        (
            "install_requirements",
            "",
            {"STANDARD_AUTO_INSTALL_REQ": "true"},
            True,
            "environment variable STANDARD_AUTO_INSTALL_REQ",
        ),
        (
            "max_cpu_loras",
            "",
            {"SAGEMAKER_MAX_NUMBER_OF_ADAPTERS_IN_MEMORY": "9"},
            9,
            "environment variable SAGEMAKER_MAX_NUMBER_OF_ADAPTERS_IN_MEMORY",
        ),
        ("prompt_lookup_num_tokens", "", {"SPECULATE": "3"}, 3, "environment variable SPECULATE"),
        ("job_queue_size", "job_queue_size=5", {"SERVING_JOB_QUEUE_SIZE": "6"}, 5, "serving.properties"),
        (
            "job_queue_size",
            "",
            {"MAX_CONCURRENT_REQUESTS": "7", "SERVING_JOB_QUEUE_SIZE": "6"},
            6,
            "environment variable SERVING_JOB_QUEUE_SIZE",
        ),
        (
            "job_queue_size",
            "",
            {"MAX_CONCURRENT_REQUESTS": "7"},
            7,
            "environment variable MAX_CONCURRENT_REQUESTS",
        ),
        ("quantize", "", {"HF_MODEL_QUANTIZE": "awq"}, "awq", "environment variable HF_MODEL_QUANTIZE"),
        (
            "trust_remote_code",
            "",
            {"HF_MODEL_TRUST_REMOTE_CODE": "True", "OPTION_TRUST_REMOTE_CODE": "false"},
            False,
            "environment variable OPTION_TRUST_REMOTE_CODE",
        ),
        (
            "max_rolling_batch_prefill_tokens",
            "",
            {"MAX_BATCH_PREFILL_TOKENS": "4096"},
            4096,
            "environment variable MAX_BATCH_PREFILL_TOKENS",
        ),
        ("max_rolling_batch_size", "", {"MAX_BATCH_SIZE": "5"}, 5, "environment variable MAX_BATCH_SIZE"),
        ("max_model_len", "", {"MAX_TOTAL_TOKENS": "2048"}, 2048, "environment variable MAX_TOTAL_TOKENS"),
        ("enforce_eager", "", {"ENABLE_CUDA_GRAPHS": "true"}, False, "environment variable ENABLE_CUDA_GRAPHS"),
        ("enforce_eager", "", {"ENABLE_CUDA_GRAPHS": "0"}, True, "environment variable ENABLE_CUDA_GRAPHS"),
        (
            "gpu_memory_utilization",
            "",
            {"CUDA_MEMORY_FRACTION": "0.8"},
            0.8,
            "environment variable CUDA_MEMORY_FRACTION",
        ),
        ("restart_limit", "retry_threshold=1", {"SERVING_RETRY_THRESHOLD": "9"}, 1, "serving.properties"),
        ("batch_size", "max_dynamic_batch_size=3", {}, 3, "serving.properties"),
        ("batch_size", "", {"OPTION_BATCH_SIZE": "3"}, 3, "environment variable OPTION_BATCH_SIZE"),
        ("tool_call_parser", "", {"OPTION_tool_call_parser": "x"}, "x", "environment variable OPTION_tool_call_parser"),
    ],
)
def test_precedence(model_dir: Path, name: str, file: str, environ: dict[str, str], value: object, source: str) -> None:
    loaded = load(model_dir, file, **environ)
    found = setting(loaded, OPTIONS[name].key)
    values = msgspec.structs.asdict(loaded.properties) | loaded.properties.engine_options
    assert values[name] == value
    assert (found.value, found.source) == (value, source)


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("OPTION_MPI_MODE", "option.mpi_mode"),
        ("OPTION_pythonExecutable", "option.pythonExecutable"),
        ("SERVING_CHUNKED_READ_TIMEOUT", "chunked_read_timeout"),
        ("SERVING_LOAD_ON_DEVICES", "load_on_devices"),
    ],
)
def test_variable_without_effect_is_reported_with_its_name(variable: str, key: str) -> None:
    loaded = load_properties(None, {variable: "x"}, registry())
    assert [(item.key, item.note) for item in loaded.explicit] == [(key, NO_EFFECT[key])]
    assert not loaded.unknown
    assert loaded.warnings(TRANSFORMERS) == ()


def test_variables_of_other_programs_are_ignored() -> None:
    assert (
        load_properties(None, {"SERVING_FEATURES": "vllm", "OPTIONS": "1", "option_dtype": "x"}, registry()).explicit
        == ()
    )


@pytest.mark.parametrize("table", [OVERRIDES, NATIVE, TGI])
def test_tables_of_variables_name_options(table: dict[str, Any]) -> None:
    assert {variable.option for variable in table.values()} <= set(OPTIONS)
