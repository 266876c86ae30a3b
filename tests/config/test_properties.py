"""serving.properties and the environment: grammar, precedence, casts, warnings, `lmi check` and the generated page."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import javaproperties
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from lmi_handlers.config.options import (
    DEPRECATED_KEYS,
    KEYS,
    NATIVE,
    NO_EFFECT,
    OPTIONS,
    OVERRIDES,
    TGI,
    DeclaredOption,
    InvalidValue,
    Option,
    options_page,
    text_of,
)
from lmi_handlers.config.properties import (
    LoadedProperties,
    ServingProperties,
    Setting,
    load_properties,
    read_properties,
    redacted,
    render_settings,
)
from lmi_handlers.core.errors import ConfigError


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    return directory


def load(model_dir: Path, text: str = "", **environ: str) -> LoadedProperties:
    (model_dir / "serving.properties").write_text(text, encoding="utf-8")
    return load_properties(model_dir, environ)


def setting(loaded: LoadedProperties, key: str) -> Setting:
    return next(item for item in (*loaded.explicit, *loaded.defaults) if item.key == key)


# The grammar


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# comment\n  ! comment\n\na = 1", {"a": "1"}),
        ("a=one,\\\n    two\n", {"a": "one,two"}),
        ("a=one\\\r\n  two\r\nb=3\r\n", {"a": "onetwo", "b": "3"}),
        ("a=\\u00e9\\u4e2d\\ud83d\\ude00\\t.\\n", {"a": "é中😀\t.\n"}),
        ("a=é中😀", {"a": "é中😀"}),
        ("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}),
        ("a=1\na=2\n", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=b=c#d", {"a": "b=c#d"}),
        ("\ufeffa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_grammar(tmp_path: Path, text: str, properties: dict[str, str]) -> None:
    path = tmp_path / "serving.properties"
    path.write_bytes(text.encode())
    assert read_properties(path) == properties


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(properties=st.dictionaries(texts, texts))
def test_whatever_java_can_write_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, properties: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.properties"
    for ensure_ascii in (True, False):
        path.write_bytes(javaproperties.dumps(properties, timestamp=False, ensure_ascii=ensure_ascii).encode())
        assert read_properties(path) == properties


@given(properties=st.dictionaries(st.sampled_from([*KEYS, *NO_EFFECT, "option.new", "new"]), texts))
def test_any_values_are_loaded_or_refused_as_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, properties: dict[str, str]
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / "serving.properties").write_bytes(javaproperties.dumps(properties).encode())
    with contextlib.suppress(ConfigError):
        loaded = load_properties(directory, {})
        record = msgspec.json.encode(loaded.properties)
        assert msgspec.json.decode(record, type=ServingProperties) == loaded.properties
        assert render_settings(loaded, "transformers", passes_options=False, show_all=True)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"a=\xff", "not UTF-8 text: byte 0xff at 2"),
        (b"a=\\u12", "is no properties file: Invalid \\u escape sequence"),
    ],
)
def test_bad_file_is_named(model_dir: Path, content: bytes, cause: str) -> None:
    path = model_dir / "serving.properties"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_properties(model_dir, {})
    assert str(path) in str(caught.value)
    assert cause in str(caught.value)


def test_text_that_is_not_unicode_is_a_mistake(model_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, "option.model_id=\\ud83d", OPTION_REVISION="\udcff")
    assert str(caught.value).splitlines() == [
        "'option.model_id' has text that is not Unicode (from serving.properties)",
        "'option.revision' has text that is not Unicode (from environment variable OPTION_REVISION)",
    ]


def test_file_that_cannot_be_read_is_named(model_dir: Path) -> None:
    (model_dir / "serving.properties").mkdir()
    with pytest.raises(ConfigError, match=r"serving\.properties cannot be read: Is a directory"):
        load_properties(model_dir, {})


def test_missing_model_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none does not exist"):
        load_properties(tmp_path / "none", {})


def test_without_file_and_environment_everything_is_default(model_dir: Path) -> None:
    for loaded in (load_properties(None, {}), load_properties(model_dir, {"PATH": "/bin", "HF_TOKEN": "hf_abc"})):
        assert loaded.explicit == ()
        assert loaded.warnings("transformers", passes_options=False) == ()
        assert not loaded.unknown
        assert [item.key for item in loaded.defaults] == [declared.key for declared in OPTIONS.values()]
        assert "hf_abc" not in repr(loaded)
    assert load_properties(None, {}).properties == ServingProperties()


def test_keys_and_values_are_trimmed_and_empty_ones_ignored(model_dir: Path) -> None:
    loaded = load(model_dir, "\\ option.dtype\\ =fp16  \noption.revision=\noption.task=\\ \n", OPTION_QUANTIZE="")
    assert loaded.properties.dtype == "fp16"
    assert loaded.properties.revision is None
    assert [item.key for item in loaded.explicit] == ["option.dtype"]


# Precedence


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
    assert (getattr(loaded.properties, name), found.value, found.source) == (value, value, source)


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("OPTION_MPI_MODE", "option.mpi_mode"),
        ("OPTION_pythonExecutable", "option.pythonExecutable"),
        ("SERVING_CHUNKED_READ_TIMEOUT", "chunked_read_timeout"),
        ("SERVING_MIN_WORKERS", "minWorkers"),
    ],
)
def test_name_without_effect_comes_from_its_variable(variable: str, key: str) -> None:
    loaded = load_properties(None, {variable: "x"})
    assert [(item.key, item.note) for item in loaded.explicit] == [(key, NO_EFFECT[key])]
    assert not loaded.unknown
    assert loaded.warnings("transformers", passes_options=False) == ()


def test_variables_of_other_programs_are_left_alone() -> None:
    assert load_properties(None, {"SERVING_FEATURES": "vllm", "OPTIONS": "1", "option_dtype": "x"}).explicit == ()


@pytest.mark.parametrize("table", [OVERRIDES, NATIVE, TGI])
def test_tables_of_variables_name_options(table: dict[str, Any]) -> None:
    assert {variable.option for variable in table.values()} <= set(OPTIONS)


# Casts


def option(name: str) -> DeclaredOption:
    return OPTIONS[name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("trust_remote_code", "True", True),
        ("trust_remote_code", "1", True),
        ("trust_remote_code", "NO", False),
        ("max_model_len", "4096", 4096),
        ("max_model_len", "+4096", 4096),
        ("gpu_memory_utilization", "1", 1.0),
        ("gpu_memory_utilization", ".9", 0.9),
        ("gpu_memory_utilization", "9e-1", 0.9),
        ("tensor_parallel_degree", "MAX", "max"),
        ("tensor_parallel_degree", "2", 2),
        ("enable_streaming", "True", "true"),
        ("dtype", "bfloat16", "bf16"),
        ("dtype", "Float16", "fp16"),
        ("dtype", "float32", "fp32"),
        ("dtype", "AUTO", "auto"),
        ("rolling_batch", "lmi_dist", "lmi-dist"),
        ("rolling_batch", "my-Plugin", "my-Plugin"),
        ("backend", "pytorch", "tensorrt_llm"),
        ("echo_load_seconds", "2", 2.0),
    ],
)
def test_cast(name: str, text: str, value: object) -> None:
    parsed = option(name).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("max_rolling_batch_size", "abc", "not an integer"),
        ("max_rolling_batch_size", "1_0", "not an integer"),
        ("max_rolling_batch_size", "1.0", "not an integer"),
        ("max_rolling_batch_size", "٣", "not an integer"),  # an Arabic digit, which int() takes
        ("max_rolling_batch_size", "9" * 5000, "too large"),
        ("tensor_parallel_degree", "maximum", "not an integer nor max"),
        ("tensor_parallel_degree", "0", "must be at least 1"),
        ("gpu_memory_utilization", "nan", "not a number"),
        ("gpu_memory_utilization", "inf", "not a number"),
        ("gpu_memory_utilization", "0", "must be above 0 and at most 1"),
        ("gpu_memory_utilization", "1.01", "must be above 0 and at most 1"),
        ("echo_load_seconds", "1e999", "too large"),
        ("trust_remote_code", "ja", "not true or false"),
        ("trust_remote_code", "2", "not true or false"),
        ("dtype", "fp8", "not one of auto, fp32, fp16, bf16, int8"),
        ("echo_fault", "explode", "not one of none, exit_in_load, out_of_memory_in_load, raise_in_load, slow_load"),
    ],
)
def test_strict_cast(name: str, text: str, cause: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        option(name).parse(text)
    assert str(caught.value) == cause


@pytest.mark.parametrize("declared", [item for item in OPTIONS.values() if item.range], ids=lambda item: item.name)
def test_range_ends_where_it_is_declared(declared: DeclaredOption) -> None:
    bounds = declared.option
    step = 1 if int in declared.types else 0.25
    inside = [bounds.ge, bounds.le, None if bounds.gt is None else bounds.gt + step]
    outside = [
        None if bounds.ge is None else bounds.ge - step,
        bounds.gt,
        None if bounds.le is None else bounds.le + step,
    ]
    for number in inside:
        assert number is None or declared.parse(str(number)) == number
    for number in outside:
        if number is not None:
            with pytest.raises(InvalidValue, match=f"must be {declared.range}"):
                declared.parse(str(number))


@pytest.mark.parametrize("declared", OPTIONS.values(), ids=lambda item: item.name)
def test_declaration(declared: DeclaredOption) -> None:
    """A default is a value that the option itself takes, and somebody reads the option."""
    if declared.default is not None:
        assert declared.parse(text_of(declared.default)) == declared.default
    assert declared.option.help.endswith(".")
    assert set(declared.option.read_by) <= {"server", "echo", "transformers", "vllm", "lmi_dist", "tensorrt_llm"}
    assert declared.option.read_by
    assert not set(declared.keys) & set(NO_EFFECT)


def test_no_name_means_two_options() -> None:
    assert len(KEYS) == sum(len(declared.keys) for declared in OPTIONS.values())
    assert set(DEPRECATED_KEYS) <= set(KEYS)


def test_every_field_is_declared() -> None:
    fields = {field.name for field in msgspec.structs.fields(ServingProperties)}
    assert fields - set(OPTIONS) == {"model_dir", "extra"}


def test_option_declarations_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Option("Help.", ("server",)).help = "Other."  # type: ignore[misc]  # what the test is about


@given(text=texts)
def test_each_option_takes_any_text_or_refuses_it(text: str) -> None:
    for declared in OPTIONS.values():
        try:
            value: Any = declared.parse(text)
        except InvalidValue:
            continue
        properties = ServingProperties(**{declared.name: value})
        assert msgspec.json.decode(msgspec.json.encode(properties), type=ServingProperties) == properties


# Mistakes


def test_every_mistake_is_listed_with_its_source(model_dir: Path) -> None:
    text = "option.max_rolling_batch_size=abc\noption.dtype=fp8\nmax_dynamic_batch_size=0\noption.rolling_batch=vllm\n"
    with pytest.raises(ConfigError) as caught:
        load(model_dir, text, OPTION_ENABLE_LORA="ja", OPTION_BACKEND="echo", SAGEMAKER_MAX_PAYLOAD_IN_MB="6M")
    assert str(caught.value).splitlines() == [
        "max_request_size has value '6M': not an integer (from environment variable SAGEMAKER_MAX_PAYLOAD_IN_MB)",
        "option.max_rolling_batch_size has value 'abc': not an integer (from serving.properties)",
        "option.dtype has value 'fp8': not one of auto, fp32, fp16, bf16, int8 (from serving.properties)",
        "max_dynamic_batch_size has value '0': must be at least 1 (from serving.properties)",
        "option.enable_lora has value 'ja': not true or false (from environment variable OPTION_ENABLE_LORA)",
        "option.rolling_batch=vllm conflicts with option.backend=echo: they name different backends "
        "(from serving.properties and environment variable OPTION_BACKEND)",
    ]


def test_overridden_mistake_is_none(model_dir: Path) -> None:
    loaded = load(model_dir, "option.predict_timeout=abc", SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS="5")
    assert loaded.properties.predict_timeout == 5


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "option.rolling_batch=vllm\nbatch_size=4",
            "option.rolling_batch=vllm conflicts with batch_size=4: dynamic batching turns rolling batch off "
            "(from serving.properties)",
        ),
        (
            "option.enable_streaming=true\nbatch_size=4",
            "option.enable_streaming=true conflicts with batch_size=4: a dynamic batch cannot be streamed "
            "(from serving.properties)",
        ),
        (
            "option.model_id=a\noption.s3url=b",
            "option.model_id=a and option.s3url=b are the same option with different values (from serving.properties)",
        ),
        (
            "option.rolling_batch=trtllm\noption.backend=vllm",
            "option.rolling_batch=trtllm conflicts with option.backend=vllm: they name different backends "
            "(from serving.properties)",
        ),
    ],
)
def test_conflict(model_dir: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, text)
    assert str(caught.value) == mistake


@pytest.mark.parametrize("text", ["batch_size=4", "batch_size=4\noption.rolling_batch=auto"])
def test_dynamic_batch_turns_rolling_batch_off(model_dir: Path, text: str) -> None:
    loaded = load(model_dir, text)
    assert loaded.properties.rolling_batch == "disable"
    assert not loaded.properties.rolling
    assert setting(loaded, "option.rolling_batch").source == "batch_size=4 in serving.properties"
    assert "option.rolling_batch" not in [item.key for item in loaded.defaults]


@pytest.mark.parametrize(
    ("text", "backend", "rolling"),
    [
        ("", "auto", True),
        ("option.rolling_batch=scheduler", "transformers", True),
        ("option.rolling_batch=vllm\noption.backend=vllm", "vllm", True),
        ("option.rolling_batch=vllm\noption.backend=auto", "vllm", True),
        ("option.rolling_batch=lmi-dist\noption.backend=lmi-dist", "lmi_dist", True),
        ("option.rolling_batch=trtllm\noption.backend=pytorch", "tensorrt_llm", True),
        ("option.rolling_batch=tensorrt_llm", "tensorrt_llm", True),
        ("option.rolling_batch=auto\noption.backend=echo", "echo", True),
        ("option.rolling_batch=disable\noption.backend=echo", "echo", False),
        ("option.rolling_batch=disable", "auto", False),
        ("option.rolling_batch=my_plugin", "my_plugin", True),
        ("batch_size=4\noption.backend=echo", "echo", False),
    ],
)
def test_backend_asked_for(model_dir: Path, text: str, backend: str, rolling: bool) -> None:
    properties = load(model_dir, text).properties
    assert (properties.backend_name, properties.rolling) == (backend, rolling)


@pytest.mark.parametrize(
    ("text", "environ", "name"),
    [
        ("option.model_id=a/b", {}, "my_model"),
        ("option.model_id=a/b\noption.model_name=chat", {}, "chat"),
        ("option.modelName=chat", {}, "chat"),
        ("", {"HF_MODEL_ID": "HuggingFaceTB/SmolLM2-135M"}, "HuggingFaceTB_SmolLM2_135M"),
        ("", {"HF_MODEL_ID": "/opt/ml/model"}, "model"),
        ("", {"HF_MODEL_ID": "s3://bucket/models/llama-3/"}, "llama_3"),
    ],
)
def test_model_name(model_dir: Path, text: str, environ: dict[str, str], name: str) -> None:
    assert load(model_dir, text, **environ).properties.name == name


def test_model_name_without_directory() -> None:
    assert load_properties(None, {}).properties.name == "model"
    assert load_properties(None, {"OPTION_MODEL_ID": "a/b"}).properties.name == "a_b"


# Unknown names and warnings


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("option.max_rolling_batchsize", "option.max_rolling_batch_size"),
        ("option.Dtype", "option.dtype"),
        ("option.entrypoint", "option.entryPoint"),
        ("option.engine", "engine"),
        ("model_id", "option.model_id"),
        ("batchsize", "batch_size"),
    ],
)
def test_unknown_name_is_warned_of_with_the_nearest(model_dir: Path, key: str, nearest: str) -> None:
    loaded = load(model_dir, f"{key}=1")
    assert loaded.unknown_names(passes_options=False) == (
        f"unknown option {key}; did you mean {nearest}? (from serving.properties)",
    )


def test_unknown_option_is_kept_for_a_backend(model_dir: Path) -> None:
    loaded = load(model_dir, "option.swap_space=4\nsomething=5", OPTION_SEED="6")
    assert loaded.properties.extra == {"swap_space": "4", "seed": "6"}
    assert [item.note.startswith("unknown") for item in loaded.explicit] == [True] * 3


@pytest.mark.parametrize("key", ["zzzzz", "my_threshold", "option.temperature", "option.size"])
def test_name_near_to_nothing_gets_no_hint(model_dir: Path, key: str) -> None:
    warnings = load(model_dir, f"{key}=1").warnings("transformers", passes_options=False)
    assert warnings == (f"unknown option {key} (from serving.properties)",)


def test_engine_that_options_are_passed_to_may_know_more(model_dir: Path) -> None:
    loaded = load(model_dir, "option.swap_space=4\nsomething=5\noption.my_secret=xyz\n")
    assert len(loaded.unknown_names(passes_options=False)) == 3
    left = loaded.unknown_names(passes_options=True)
    assert [warning.split(";")[0] for warning in left] == [
        "unknown option something (from serving.properties)",
        "unknown option option.my_secret",
    ]
    assert "passed on to vllm" in render_settings(loaded, "vllm", passes_options=True, show_all=False)
    assert "passed on to" not in render_settings(loaded, "transformers", passes_options=False, show_all=True)


def test_known_and_harmless_file_gives_no_warning(model_dir: Path) -> None:
    text = "engine=Python\noption.entryPoint=djl_python.huggingface\noption.mpi_mode=false\noption.rolling_batch=auto\n"
    loaded = load(model_dir, text)
    assert loaded.warnings("transformers", passes_options=False) == ()


@pytest.mark.parametrize(
    "key", ["option.enable_streaming=true", "option.s3url=s3://bucket/model", "option.data_type=fp16"]
)
def test_deprecated_name_is_warned_of(model_dir: Path, key: str) -> None:
    loaded = load(model_dir, key)
    assert len(loaded.deprecated) == 1
    assert f"{key.partition('=')[0]} is deprecated: " in loaded.deprecated[0]
    assert not loaded.unknown


def test_option_the_backend_does_not_read_is_warned_of(model_dir: Path) -> None:
    loaded = load(model_dir, "option.enable_lora=true\noption.enforce_eager=true\noption.dtype=fp16\nbatch_size=1\n")
    assert loaded.unread("transformers") == (
        "option.enable_lora has no effect on backend transformers: only vllm, lmi_dist, tensorrt_llm read it "
        "(from serving.properties)",
        "option.enforce_eager has no effect on backend transformers: only vllm, lmi_dist read it "
        "(from serving.properties)",
    )
    assert loaded.unread("vllm") == ()
    assert loaded.unread("some_plugin") == ()


# Secrets


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("option.hf_token", "hf_abc", "******"),
        ("option.api_key", "abc", "******"),
        ("AWS_SECRET_ACCESS_KEY", "abc", "******"),
        ("option.dbPassword", "abc", "******"),
        ("option.credentials", "abc", "******"),
        ("option.long_prefill_token_threshold", "4096", "4096"),
        ("option.tokenizer", "org/name", "org/name"),
        ("option.max_rolling_batch_prefill_tokens", "4096", "4096"),
        ("option.model_id", "https://user:p@ss@host/model", "https://******@host/model"),
        ("option.model_id", "s3://bucket/model@v1", "s3://bucket/model@v1"),
        ("option.model_id", "https://h/m?X-Amz-Signature=abc&v=1", "https://h/m?X-Amz-Signature=******&v=1"),
        ("option.env", "A=1,HF_TOKEN=hf_abc,B=2", "A=1,HF_TOKEN=******,B=2"),
    ],
)
def test_redaction(key: str, text: str, shown: str) -> None:
    assert redacted(key, text) == shown


def test_secret_is_neither_passed_on_nor_shown(model_dir: Path) -> None:
    loaded = load(
        model_dir, "option.hf_token=hf_abc\noption.model_id=https://me:hf_abc@host/m", OPTION_API_KEY="hf_abc"
    )
    assert loaded.properties.extra == {}
    assert loaded.redacted() == {
        "option.hf_token": "******",
        "option.model_id": "https://******@host/m",
        "option.api_key": "******",
    }
    assert "hf_abc" not in render_settings(loaded, "transformers", passes_options=False, show_all=True)


def test_secret_is_not_shown_in_a_mistake(model_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, "option.dtype=https://me:hf_abc@host/m\noption.model_id=a\noption.s3url=https://me:hf_abc@h/m")
    assert "hf_abc" not in str(caught.value)
    assert str(caught.value).count("******") == 2


# `lmi check`


def test_check_shows_set_options_and_on_request_the_defaults(model_dir: Path) -> None:
    loaded = load(
        model_dir, "engine=Python\noption.enable_lora=true\noption.tgi_compact=true\n", OPTION_DTYPE="float16"
    )
    explicit, rest = render_settings(loaded, "transformers", passes_options=False, show_all=False).split("\n\n")
    assert explicit.splitlines() == [
        "Set",
        "  engine              Python  serving.properties                 "
        "accepted, no effect here: the engine is chosen by option.rolling_batch and option.backend",
        "  option.tgi_compact  true    serving.properties                 unknown; did you mean option.tgi_compat?",
        "  option.enable_lora  true    serving.properties                 "
        "no effect on backend transformers, read by vllm, lmi_dist, tensorrt_llm",
        "  option.dtype        fp16    environment variable OPTION_DTYPE  "
        "read by transformers, vllm, lmi_dist, tensorrt_llm",
    ]
    assert rest == f"{len(OPTIONS) - 2} options have their defaults; `lmi check --all` shows them.\n"
    again, defaults = render_settings(loaded, "transformers", passes_options=False, show_all=True).split("\n\n")
    assert again == explicit
    assert len(defaults.splitlines()) == 1 + len(OPTIONS) - 2
    assert re.search(r"^  job_queue_size +1000 +default +read by server$", defaults, re.MULTILINE)
    assert not re.search(r"^  option\.dtype ", defaults, re.MULTILINE)


def test_check_of_nothing_set() -> None:
    loaded = load_properties(None, {})
    text = render_settings(loaded, "echo", passes_options=False, show_all=False)
    assert text == f"{len(OPTIONS)} options have their defaults; `lmi check --all` shows them.\n"
    text = render_settings(loaded, "echo", passes_options=False, show_all=True)
    assert text.startswith("Defaults\n")
    assert re.search(r"^  option\.echo_fault +none +default +read by echo$", text, re.MULTILINE)


# The record


def test_record_crosses_to_the_engine_process(model_dir: Path) -> None:
    properties = load(
        model_dir, "option.tensor_parallel_degree=2\noption.gpu_memory_utilization=0.5\noption.x=y"
    ).properties
    assert msgspec.json.decode(msgspec.json.encode(properties), type=ServingProperties) == properties
    assert properties.model_dir == str(model_dir)


def test_record_is_frozen() -> None:
    with pytest.raises(AttributeError):
        ServingProperties().dtype = "fp16"  # type: ignore[misc]  # what the test is about


# What the repository ships


def test_shipped_file_shows_known_names_and_their_defaults() -> None:
    text = (ROOT / "serving.properties").read_text(encoding="utf-8")
    shown = javaproperties.loads(re.sub(r"^#(?=\S+=)", "", text, flags=re.MULTILINE))
    assert len(shown) > 10
    for key, value in shown.items():
        assert key in KEYS
        assert value == text_of(KEYS[key].default), key


def test_shipped_file_leaves_every_default_as_it_is() -> None:
    loaded = load_properties(ROOT, {})
    assert loaded.warnings("transformers", passes_options=False) == ()
    assert loaded.properties == ServingProperties(model_dir=str(ROOT), model_name=loaded.properties.name)


def test_options_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == options_page(), "run: python -m lmi_handlers.config.options > docs/options.md"
    for declared in OPTIONS.values():
        assert f"| `{declared.key}` |" in page
