"""Unknown names, warnings, secrets, and the tables of `lmi check`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from facts import raises, says, tell
from serving_properties import load

from backends import declaration, registry
from backends.selection import check_installed
from lmi_handlers.config.no_effect import NO_EFFECT, TGI_NO_EFFECT
from lmi_handlers.config.not_provided import OPTIONS_NOT_PROVIDED
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.properties import examine_properties, load_properties
from lmi_handlers.config.report import render_settings
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import is_secret, redacted
from lmi_handlers.model_files.secure_mode import ALLOWED
from lmi_handlers.preflight.configuration import CUSTOM_CODE

OPTIONS = registry().options
KEYS = registry().keys
TRANSFORMERS = declaration("transformers")


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
def test_warning_for_an_unknown_name_suggests_the_nearest(model_dir: Path, key: str, nearest: str) -> None:
    loaded = load(model_dir, f"{key}=1")
    assert tell(loaded.unknown_names(TRANSFORMERS), [f"unknown {key} {nearest} serving.properties"])


def test_unknown_option_is_kept_for_a_backend(model_dir: Path) -> None:
    loaded = load(model_dir, "option.swap_space=4\nsomething=5", OPTION_SEED="6")
    assert loaded.properties.extra == {"swap_space": "4", "seed": "6"}
    assert [item.note.startswith("unknown") for item in loaded.explicit] == [True] * 3


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("SERVING_JOB_QUE_SIZE", "mean SERVING_JOB_QUEUE_SIZE"),
        ("SERVING_LOAD_MODEL", "mean SERVING_LOAD_MODELS"),
        ("SERVING_ERROR_RATE_SERVERS", "mean SERVING_ERROR_RATE_SERVER"),
        ("SERVING_DOWNLOAD_DIR", ""),
    ],
)
def test_warning_for_an_unknown_variable_of_lmi(model_dir: Path, name: str, nearest: str) -> None:
    """Such a variable is no unknown option: `lmi check` does not fail, because it did not before."""
    loaded = load(model_dir, **{name: "7"})
    assert tell(loaded.warnings(TRANSFORMERS), [f"{name} 7 not known no effect {nearest}"])
    assert ("mean" in loaded.warnings(TRANSFORMERS)[0]) == bool(nearest)
    assert loaded.unknown_names(TRANSFORMERS) == ()
    assert load(model_dir, **{name: " "}).warnings(TRANSFORMERS) == ()


def test_an_unknown_variable_may_have_any_bytes(model_dir: Path) -> None:
    loaded = load(model_dir, SERVING_X="\udcff")
    assert tell(loaded.warnings(TRANSFORMERS), ["SERVING_X not known"])
    msgspec.json.encode(loaded.explicit)


def test_known_variables_of_lmi_are_not_called_unknown(model_dir: Path) -> None:
    known = {"SERVING_MODEL_STORE": "/x", "SERVING_JOB_QUEUE_SIZE": "7", "SERVING_FAIL_FAST": "true"}
    assert load(model_dir, **known).warnings(TRANSFORMERS) == ()


@pytest.mark.parametrize("key", ["zzzzz", "my_threshold", "option.temperature", "option.size"])
def test_warning_without_suggestion_if_no_name_is_near(model_dir: Path, key: str) -> None:
    warnings = load(model_dir, f"{key}=1").warnings(TRANSFORMERS)
    assert tell(warnings, [f"unknown {key} serving.properties"])


def test_engine_may_accept_options_that_are_unknown_here(model_dir: Path) -> None:
    loaded = load(model_dir, "option.swap_space=4\nsomething=5\noption.my_secret=xyz\n")
    assert len(loaded.unknown_names(TRANSFORMERS)) == 3
    left = loaded.unknown_names(declaration("vllm"))
    assert tell(
        [warning.split(";")[0] for warning in left],
        ["unknown something serving.properties", "unknown option option.my_secret"],
    )
    assert "passed on to vllm" in render_settings(loaded, declaration("vllm"), show_all=False)
    assert "passed on to" not in render_settings(loaded, TRANSFORMERS, show_all=True)


def test_variables_of_tgi_without_effect_are_shown_and_those_that_change_answers_cause_a_warning() -> None:
    loaded = load(None, LORA_ADAPTERS="a=org/b", USAGE_STATS="off", MAX_BATCH_TOTAL_TOKENS="9000", ROPE_FACTOR=" ")
    assert {setting.key: setting.note for setting in loaded.explicit} == {
        name: TGI_NO_EFFECT[name] for name in ("MAX_BATCH_TOTAL_TOKENS", "LORA_ADAPTERS", "USAGE_STATS")
    }
    assert tell(
        loaded.warnings(TRANSFORMERS),
        ["LORA_ADAPTERS a=org/b no effect answers option.enable_lora variable LORA_ADAPTERS"],
    )
    table = render_settings(loaded, TRANSFORMERS, show_all=False)
    assert f"accepted, no effect here: {TGI_NO_EFFECT['USAGE_STATS']}" in table


def test_option_for_the_engine_that_looks_misspelt_causes_a_warning(model_dir: Path) -> None:
    vllm = declaration("vllm")
    loaded = load(model_dir, "option.tensor_paralel_degree=2\noption.disable_custom_all_reduce=true\n")
    assert loaded.unknown_names(vllm) == ()
    assert tell(
        loaded.warnings(vllm),
        ["option.tensor_paralel_degree unknown vllm option.tensor_parallel_degree serving.properties"],
    )
    assert loaded.misspelt(TRANSFORMERS) == ()


def test_none_of_vllms_own_arguments_looks_misspelt(model_dir: Path) -> None:
    """Some resemble options of TensorRT-LLM, or without the prefix."""
    text = "".join(f"option.{name}=1\n" for name in ("ubatch_size", "decode_context_parallel_size", "max_logprobs"))
    assert load(model_dir, text).warnings(declaration("vllm")) == ()


def test_option_with_a_mistake_causes_no_warning(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text("option.enforce_eager=many # x\noption.tokens_per_block=32\n")
    loaded = examine_properties(model_dir, {}, registry())
    [mistake], [warning] = loaded.mistakes, loaded.warnings(TRANSFORMERS)
    assert mistake.startswith("option.enforce_eager has value 'many # x': ")
    assert says(warning, "option.tokens_per_block effect transformers")
    assert re.search(r"option\.enforce_eager .* refused$", render_settings(loaded, TRANSFORMERS, show_all=False), re.M)


@pytest.mark.parametrize("text", ['"gpt2"', "'gpt2'"])
def test_value_in_quotes_causes_a_warning(model_dir: Path, text: str) -> None:
    sentence = f"option.model_id has value {text!r}: the quotes are part of the value: leave them out (from {{}})"
    assert load(model_dir, f"option.model_id={text}").warnings(TRANSFORMERS) == (sentence.format("serving.properties"),)
    variable = load(model_dir, OPTION_MODEL_ID=text)
    assert variable.warnings(TRANSFORMERS) == (sentence.format("environment variable OPTION_MODEL_ID"),)
    assert load(model_dir, 'option.model_id="a" b').warnings(TRANSFORMERS) == ()


def test_unknown_task_is_refused_with_the_known_ones(model_dir: Path) -> None:
    with raises(ConfigError, "option.task=reranking supported auto"):
        load(model_dir, "option.task=reranking")


def test_size_of_a_handlers_sessions_is_an_option(model_dir: Path) -> None:
    """It is read by a model.py, to which unknown options are passed on with a warning if they resemble a known one."""
    assert load(model_dir, "option.max_session_size=2000").warnings(CUSTOM_CODE) == ()
    with raises(ConfigError, "option.max_session_size 1G integer"):
        load(model_dir, "option.max_session_size=1G")


def test_file_with_known_options_causes_no_warnings(model_dir: Path) -> None:
    text = "engine=Python\noption.entryPoint=djl_python.huggingface\noption.mpi_mode=false\noption.rolling_batch=auto\n"
    loaded = load(model_dir, text)
    assert loaded.warnings(TRANSFORMERS) == ()


@pytest.mark.parametrize(
    "key", ["option.enable_streaming=true", "option.s3url=s3://bucket/model", "option.data_type=fp16"]
)
def test_deprecated_name_causes_a_warning(model_dir: Path, key: str) -> None:
    loaded = load(model_dir, key)
    assert len(loaded.deprecated) == 1
    assert f"{key.partition('=')[0]} is deprecated: " in loaded.deprecated[0]
    assert not loaded.unknown


def test_option_that_the_backend_ignores_causes_a_warning(model_dir: Path) -> None:
    loaded = load(model_dir, "option.enforce_eager=true\noption.dtype=fp16\nbatch_size=1\n")
    assert tell(
        loaded.unread(TRANSFORMERS), ["option.enforce_eager effect transformers vllm lmi_dist serving.properties"]
    )
    assert loaded.unread(declaration("vllm")) == ()


def test_option_that_only_other_backends_read_is_passed_on(model_dir: Path) -> None:
    """The engine may have an argument of the same name."""
    text = (
        "option.tokens_per_block=64\noption.enforce_eager=true\noption.swap_space=4\nbatch_size=1\noption.dtype=fp16\n"
    )
    loaded = load(model_dir, text + "option.enable_reasoning=false\noption.use_cuda_graph=no\n")
    vllm = declaration("vllm")
    expected = {"tokens_per_block": "64", "use_cuda_graph": "false", "swap_space": "4"}
    assert vllm.passed_on(loaded.properties) == expected
    assert loaded.warnings(vllm) == ()
    reads_less = msgspec.structs.replace(vllm, reads=())
    assert reads_less.passed_on(loaded.properties) == expected | {"dtype": "fp16"}
    table = render_settings(loaded, vllm, show_all=False)
    assert says(table, "option.tokens_per_block passed vllm")


# LMI's older names

LMI_ONLY = (
    "paged_attention",
    "use_v2_block_manager",
    "fail_fast",
    "low_cpu_mem_usage",
    "n_positions",
    "unroll",
    "context_length_estimate",
    "load_split_model",
    "compiled_graph_path",
    "group_query_attention",
    "enable_mixed_precision_accumulation",
    "enable_saturate_infinity",
    "draft_model_compiled_path",
    "neuron_optimize_level",
    "amp",
    "rolling_batch_strategy",
    "fuse_qkv",
    "baichuan_model_version",
    "calib_batch_size",
    "load_by_shard",
    "logits_dtype",
    "trtllm_checkpoint_path",
    "use_fp8_context_fmha",
)


@pytest.mark.parametrize("key", [*(f"option.{name}" for name in LMI_ONLY), "fail_fast", *sorted(ALLOWED)])
def test_name_that_lmi_reads_is_known(key: str) -> None:
    """Its secure mode has a list of most of them."""
    without_effect = {f"option.{name}" for name in declaration("vllm").without_effect}
    assert key in {*KEYS, *NO_EFFECT, *OPTIONS_NOT_PROVIDED, *without_effect, "option.disable_sliding_window"}, (
        "the last one is an argument of vLLM's"
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_load_in_bits_is_bitsandbytes(model_dir: Path, bits: int) -> None:
    loaded = load(model_dir, f"option.load_in_{bits}bit=True\n")
    assert loaded.properties.quantize == f"bitsandbytes{bits}"
    assert tell(
        loaded.deprecated,
        [f"option.load_in_{bits}bit deprecated option.quantize=bitsandbytes{bits} serving.properties"],
    )
    assert load(model_dir, f"option.load_in_{bits}bit=false\n").properties.quantize is None
    same = load(model_dir, f"option.load_in_{bits}bit=true\noption.quantize=bitsandbytes{bits}\n")
    assert same.properties.quantize == f"bitsandbytes{bits}"
    for other in ("option.quantize=awq", f"option.load_in_{12 - bits}bit=true"):
        with raises(ConfigError, f"conflicts {other}"):
            load(model_dir, f"option.load_in_{bits}bit=true\n{other}\n")


def test_library_for_a_quantisation_is_missed_before_the_model_is_loaded() -> None:
    backend = msgspec.structs.replace(TRANSFORMERS, requires_with={"quantize=bitsandbytes8": "no_such_library"})
    check_installed(backend, ServingProperties())
    with raises(ConfigError, "option.quantize=bitsandbytes8 module no_such_library"):
        check_installed(backend, ServingProperties(quantize="bitsandbytes8"))


@pytest.mark.parametrize(("text", "value"), [("true", "auto"), ("True", "auto"), ("false", "disable")])
def test_rolling_batch_may_be_a_boolean(model_dir: Path, text: str, value: str) -> None:
    assert load(model_dir, f"option.rolling_batch={text}").properties.rolling_batch == value


# What depends on other options


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("option.rolling_batch=disable\noption.output_formatter=jsonlines\n", ["option.output_formatter"]),
        ("option.rolling_batch=disable\noption.output_formatter=json\noption.tgi_compat=true\n", []),
        ("option.rolling_batch=disable\nmax_batch_delay=5\n", []),
        ("max_batch_delay=5\noption.output_formatter=sse\n", ["max_batch_delay"]),
        ("batch_size=2\nmax_batch_delay=5\n", []),
        ("option.enable_streaming=true\n", ["option.enable_streaming"]),
        ("option.rolling_batch=disable\noption.enable_streaming=true\n", []),
        ("option.adapter_formatters=true\n", ["option.adapter_formatters"]),
        ("option.adapter_formatters=true\noption.enable_lora=true\n", []),
        (
            "option.adapter_formatters=true\noption.enable_lora=true\noption.adapter_management=false\n",
            ["option.adapter_formatters"],
        ),
        ("option.task=text-embedding\nbatch_size=32\nmax_batch_delay=10\n", ["batch_size", "max_batch_delay"]),
    ],
)
def test_what_is_not_read_because_of_others(model_dir: Path, text: str, ignored: list[str]) -> None:
    loaded = load(model_dir, text)
    assert [warning.partition(" has no effect: ")[0] for warning in loaded.unread(TRANSFORMERS)] == ignored
    table = render_settings(loaded, TRANSFORMERS, show_all=False)
    for key in ignored:
        assert re.search(rf"{re.escape(key)} .* no effect: ", table)


# Secrets


@pytest.mark.parametrize(
    ("key", "text", "secret"),
    [
        ("option.hf_token", "hf_abc", True),
        ("option.api_key", "abc", True),
        ("AWS_SECRET_ACCESS_KEY", "abc", True),
        ("option.dbPassword", "abc", True),
        ("option.credentials", "abc", True),
        ("option.long_prefill_token_threshold", "4096", False),
        ("option.tokenizer", "org/name", False),
    ],
)
def test_secret_is_known_by_its_name(key: str, text: str, secret: bool) -> None:
    assert is_secret(key, text) is secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("4096", "4096"),
        ("https://user:p@ss@host/model", "https://******@host/model"),
        ("s3://bucket/model@v1", "s3://bucket/model@v1"),
        ("https://h/m?X-Amz-Signature=abc&v=1", "https://h/m?X-Amz-Signature=******&v=1"),
        ("A=1,HF_TOKEN=hf_abc,B=2", "A=1,HF_TOKEN=******,B=2"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_secret_is_neither_passed_to_children_nor_shown(model_dir: Path) -> None:
    loaded = load(
        model_dir, "option.hf_token=hf_abc\noption.model_id=https://me:hf_abc@host/m", OPTION_API_KEY="hf_abc"
    )
    assert loaded.properties.extra == {}
    assert loaded.redacted() == {
        "option.hf_token": "******",
        "option.model_id": "https://******@host/m",
        "option.api_key": "******",
    }
    assert "hf_abc" not in render_settings(loaded, TRANSFORMERS, show_all=True)


def test_secret_is_not_shown_in_an_error(model_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, "option.dtype=https://me:hf_abc@host/m\noption.model_id=a\noption.s3url=https://me:hf_abc@h/m")
    assert "hf_abc" not in str(caught.value)
    assert str(caught.value).count("******") == 2


# `lmi check`


def test_check_shows_set_options_and_optionally_defaults(model_dir: Path) -> None:
    loaded = load(
        model_dir, "engine=Python\noption.enable_lora=true\noption.tgi_compact=true\n", OPTION_DTYPE="float16"
    )
    explicit, rest = render_settings(loaded, TRANSFORMERS, show_all=False).split("\n\n")
    assert explicit.splitlines() == [
        "Set",
        "  engine              Python  serving.properties                 "
        "accepted, no effect here: the engine is chosen by option.rolling_batch and option.backend",
        "  option.tgi_compact  true    serving.properties                 unknown; did you mean option.tgi_compat?",
        "  option.enable_lora  true    serving.properties                 "
        "read by transformers, vllm, lmi_dist, tensorrt_llm",
        "  option.dtype        fp16    environment variable OPTION_DTYPE  "
        "read by openvino, transformers, vllm, lmi_dist, tensorrt_llm",
    ]
    assert says(rest, f"{len(OPTIONS) - 2} options --all")
    again, defaults = render_settings(loaded, TRANSFORMERS, show_all=True).split("\n\n")
    assert again == explicit
    assert len(defaults.splitlines()) == 1 + len(OPTIONS) - 2
    assert re.search(r"^  job_queue_size +1000 +default +read by server$", defaults, re.MULTILINE)
    assert not re.search(r"^  option\.dtype ", defaults, re.MULTILINE)


def test_check_without_any_settings() -> None:
    loaded = load_properties(None, {}, registry())
    text = render_settings(loaded, declaration("echo"), show_all=False)
    assert says(text, f"{len(OPTIONS)} options --all")
    text = render_settings(loaded, declaration("echo"), show_all=True)
    assert text.startswith("Defaults\n")
    assert re.search(r"^  option\.echo_fault +none +default +read by echo$", text, re.MULTILINE)
