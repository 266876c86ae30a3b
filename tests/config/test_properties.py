"""What is loaded: mistakes, conflicts, the record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from facts import raises, tell
from serving_properties import load, setting

from backends import declaration, registry
from lmi_handlers.config.properties import ServingProperties, load_properties
from lmi_handlers.core.errors import ConfigError

OPTIONS = registry().options
KEYS = registry().keys
TRANSFORMERS = declaration("transformers")


# Errors


def test_every_error_is_listed_with_its_source(model_dir: Path) -> None:
    text = "option.max_rolling_batch_size=abc\noption.dtype=fp8\nmax_dynamic_batch_size=0\noption.rolling_batch=vllm\n"
    with pytest.raises(ConfigError) as caught:
        load(model_dir, text, OPTION_ENABLE_LORA="ja", OPTION_BACKEND="echo", SAGEMAKER_MAX_PAYLOAD_IN_MB="6M")
    assert tell(
        str(caught.value).splitlines(),
        [
            "max_request_size 6M integer 1 SAGEMAKER_MAX_PAYLOAD_IN_MB",
            "option.max_rolling_batch_size abc integer 1 serving.properties",
            "option.dtype fp8 auto fp32 fp16 bf16 int8 serving.properties",
            "max_dynamic_batch_size 0 integer 1 serving.properties",
            "option.enable_lora ja true false OPTION_ENABLE_LORA",
            "option.rolling_batch=vllm conflicts option.backend=echo serving.properties OPTION_BACKEND",
        ],
    )


def test_overridden_invalid_value_is_no_error(model_dir: Path) -> None:
    loaded = load(model_dir, "option.predict_timeout=abc", SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS="5")
    assert loaded.properties.predict_timeout == 5


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "option.rolling_batch=vllm\nbatch_size=4",
            "option.rolling_batch=vllm conflicts batch_size=4 serving.properties",
        ),
        (
            "option.enable_streaming=true\nbatch_size=4",
            "option.enable_streaming=true conflicts batch_size=4 serving.properties",
        ),
        (
            "option.model_id=a\noption.s3url=b",
            "option.model_id=a option.s3url=b different serving.properties",
        ),
        (
            "option.rolling_batch=trtllm\noption.backend=vllm",
            "option.rolling_batch=trtllm conflicts option.backend=vllm serving.properties",
        ),
    ],
)
def test_conflict(model_dir: Path, text: str, mistake: str) -> None:
    with raises(ConfigError, mistake):
        load(model_dir, text)


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
def test_requested_backend(model_dir: Path, text: str, backend: str, rolling: bool) -> None:
    properties = load(model_dir, text).properties
    assert (registry().requested(properties), properties.rolling) == (backend, rolling)


@pytest.mark.parametrize(
    ("text", "environ", "name"),
    [
        ("option.model_id=a/b", {}, "my_model"),
        ("option.model_id=a/b\noption.model_name=chat", {}, "chat"),
        ("option.model_id=a/b\noption.served_model_name=chat, b", {}, "chat"),
        ("option.served_model_name=chat, b\noption.model_name=m", {}, "m"),
        ("option.modelName=chat", {}, "chat"),
        ("", {"HF_MODEL_ID": "HuggingFaceTB/SmolLM2-135M"}, "HuggingFaceTB_SmolLM2_135M"),
        ("", {"HF_MODEL_ID": "/opt/ml/model"}, "model"),
        ("", {"HF_MODEL_ID": "s3://bucket/models/llama-3/"}, "llama_3"),
    ],
)
def test_model_name(model_dir: Path, text: str, environ: dict[str, str], name: str) -> None:
    assert load(model_dir, text, **environ).properties.name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("option.model_id=org/small", "org/small"),
        ("option.model_id=org/small\noption.model_name=mine", "mine"),
        ("option.model_id=s3://bucket/folder/", "{}"),
        ("option.model_id=/opt/ml/model", "{}"),
        ("option.model_id=weights", "{}"),
        ("option.model_id=./weights", "{}"),
        ("", "{}"),
    ],
)
def test_name_that_clients_see_is_never_a_path(model_dir: Path, text: str, name: str) -> None:
    (model_dir / "weights").mkdir()
    properties = load(model_dir, text).properties
    assert properties.public_name == name.format(properties.name)


def test_names_of_a_model_are_bounded(model_dir: Path) -> None:
    assert load(model_dir, "option.served_model_name=a, org/b, a,").properties.served_names == ("a", "org/b")
    for text, cause in (
        (",".join(map(str, range(65))), "must have at most 64 names, got 65"),
        ("b" * 257, "is not a name"),
    ):
        with pytest.raises(ConfigError, match=f"^option.served_model_name: .*{cause}"):
            load(model_dir, f"option.served_model_name={text}")


@pytest.mark.parametrize(
    ("text", "cause"),
    [("[1]", "JSON object"), ("{thinks: false}", "JSON object"), ('{"tools": [], "messages": 1}', "messages, tools")],
)
def test_default_variables_of_the_chat_template_are_checked(model_dir: Path, text: str, cause: str) -> None:
    assert load(model_dir, 'option.default_chat_template_kwargs={"thinks": false}').mistakes == ()
    with pytest.raises(ConfigError, match=f"^option.default_chat_template_kwargs: .*{cause}.*serving.properties"):
        load(model_dir, f"option.default_chat_template_kwargs={text}")


def test_model_name_without_directory() -> None:
    assert load_properties(None, {}, registry()).properties.name == "model"
    assert load_properties(None, {"OPTION_MODEL_ID": "a/b"}, registry()).properties.name == "a_b"


# ServingProperties


def test_properties_can_be_sent_to_the_engine_process(model_dir: Path) -> None:
    properties = load(
        model_dir, "option.tensor_parallel_degree=2\noption.gpu_memory_utilization=0.5\noption.x=y"
    ).properties
    assert msgspec.json.decode(msgspec.json.encode(properties), type=ServingProperties) == properties
    assert properties.model_dir == str(model_dir)


def test_properties_are_immutable() -> None:
    with pytest.raises(AttributeError):
        ServingProperties().dtype = "fp16"  # type: ignore[misc]  # what the test is about
