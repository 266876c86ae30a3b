"""`SM_VLLM_*` set the options that the flags of `vllm serve` stand for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from facts import Said, raises, tell

from backends import declaration, registry
from lmi_handlers.config.properties import LoadedProperties, load_properties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.vllm_variables import given_to_vllm

DEFAULTS = "environment variable SM_VLLM_*"


def load(model_dir: Path | None, **environ: str) -> LoadedProperties:
    return load_properties(model_dir, environ, registry(), given_to_vllm(environ, registry().options))


@pytest.mark.parametrize(
    ("variable", "text", "option", "value"),
    [
        ("MODEL", "org/name", "model_id", "org/name"),
        ("MAX_MODEL_LEN", "12k", "max_model_len", 12000),
        ("TENSOR_PARALLEL_SIZE", "4", "tensor_parallel_degree", 4),
        ("MAX_NUM_SEQS", " 64 ", "max_rolling_batch_size", 64),
        ("GPU_MEMORY_UTILIZATION", "0.85", "gpu_memory_utilization", 0.85),
        ("DTYPE", "bfloat16", "dtype", "bf16"),
        ("ENFORCE_EAGER", "true", "enforce_eager", True),
        ("ENABLE_LORA", "", "enable_lora", True),
        ("NO_ENABLE_PREFIX_CACHING", "true", "enable_prefix_caching", False),
        ("LIMIT_MM_PER_PROMPT", '{"image":6, "video":0}', "limit_mm_per_prompt", '{"image":6, "video":0}'),
        ("ALLOWED_ORIGINS", '["https://a.example", "https://b.example"]', "cors_allowed_origin", "https://a.example,https://b.example"),
        ("TOOL_CALL_PARSER", "hermes", "tool_call_parser", "hermes"),
    ],
)  # fmt: skip
def test_a_variable_sets_the_option_of_its_flag(variable: str, text: str, option: str, value: object) -> None:
    loaded = load(None, **{f"SM_VLLM_{variable}": text})
    values = msgspec.structs.asdict(loaded.properties) | loaded.properties.engine_options
    assert values[option] == value
    [found] = [setting for setting in loaded.explicit if setting.source != DEFAULTS]
    assert (found.value, found.source) == (value, f"environment variable SM_VLLM_{variable}")


@pytest.mark.parametrize("text", ["false", "False"])
def test_false_is_no_flag(text: str) -> None:
    assert load(None, SM_VLLM_ENABLE_LORA=text).explicit == ()


def test_sampling_defaults_are_the_models_as_with_vllm(model_dir: Path) -> None:
    """Otherwise a chat without a temperature would be answered at 1, whatever generation_config.json says."""
    assert load(None, SM_VLLM_MODEL="org/name").properties.generation_config == "auto"
    assert load(None, HF_MODEL_ID="org/name").properties.generation_config == "vllm"
    variables = {"SM_VLLM_MODEL": "org/name", "SM_VLLM_GENERATION_CONFIG": "vllm"}
    assert load(None, **variables).properties.generation_config == "vllm"
    (model_dir / "serving.properties").write_text("option.generation_config=vllm\n")
    assert load(model_dir, SM_VLLM_MODEL="org/name").properties.generation_config == "vllm"


def test_a_flag_without_a_counterpart_causes_a_warning_if_answers_differ() -> None:
    loaded = load(None, SM_VLLM_LORA_MODULES="a=/b", SM_VLLM_PORT="8000")
    assert tell(
        loaded.warnings(declaration("vllm")), ["SM_VLLM_LORA_MODULES a=/b no effect answers option.enable_lora"]
    )


def test_default_variables_of_the_chat_template() -> None:
    loaded = load(None, SM_VLLM_DEFAULT_CHAT_TEMPLATE_KWARGS='{"enable_thinking": false}')
    assert loaded.properties.default_chat_template_kwargs == '{"enable_thinking": false}'


def test_other_arguments_are_passed_on_to_the_engine() -> None:
    assert load(None, SM_VLLM_MM_PROCESSOR_CACHE_GB="0").properties.extra == {"mm_processor_cache_gb": "0"}


def test_the_file_and_our_own_variables_take_precedence(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text("option.dtype=fp16\n")
    environ = {"SM_VLLM_DTYPE": "float32", "SM_VLLM_MAX_MODEL_LEN": "1024", "OPTION_MAX_MODEL_LEN": "2048"}
    properties = load(model_dir, **environ, SM_VLLM_MODEL="org/name", HF_MODEL_ID="org/other").properties
    assert (properties.dtype, properties.max_model_len, properties.model_id) == ("fp16", 2048, "org/name")
    assert properties.name == "org_name", "named like the model, as with HF_MODEL_ID"


def test_flags_without_a_counterpart_are_shown_with_the_reason() -> None:
    loaded = load(None, SM_VLLM_PORT="8000", SM_VLLM_SSL_KEYFILE="/x")
    assert {setting.key: setting.note for setting in loaded.explicit if setting.source != DEFAULTS} == {
        "SM_VLLM_PORT": Said("lmi serve --port"),
        "SM_VLLM_SSL_KEYFILE": Said("proxy certificate SageMaker"),
    }
    assert loaded.unknown == ()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("API_KEY", "sk-1", "SM_VLLM_API_KEY not supported API_KEY"),
        ("HF_TOKEN", "hf_1", "SM_VLLM_HF_TOKEN not supported HF_TOKEN"),
        ("MAX_MODEL_LEN", "long", "SM_VLLM_MAX_MODEL_LEN --max-model-len long number"),
        ("RUNNER", "true", "SM_VLLM_RUNNER --runner no"),
        ("CONVERT", "[]", "SM_VLLM_CONVERT no []"),
        (
            "LIMIT_MM_PER_PROMPT",
            "image=many",
            "SM_VLLM_LIMIT_MM_PER_PROMPT --limit-mm-per-prompt image=many",
        ),
    ],
)
def test_values_that_cannot_be_used_are_one_line(variable: str, text: str, message: str) -> None:
    """A key that is ignored would leave the server open."""
    with raises(ConfigError, message) as caught:
        load(None, **{f"SM_VLLM_{variable}": text})
    assert "\n" not in str(caught.value)
