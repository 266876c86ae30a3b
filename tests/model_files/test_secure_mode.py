"""SageMaker's secure mode: each control, through `lmi check`, and what DJL's overlooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest
from facts import raises, says, tell

from backends import registry
from lmi_handlers.config.properties import load_properties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.secure_mode import SecureMode
from lmi_handlers.preflight.checks import mistakes
from lmi_handlers.preflight.configuration import AnsweredBy, examine_configuration, read_configuration

ALL = (
    "DISALLOW_REQUIREMENTS_TXT, DISALLOW_PICKLE_FILES,DISALLOW_TRUST_REMOTE_CODE,"
    "DISALLOW_CUSTOM_INFERENCE_SCRIPTS,DISALLOW_CHAT_TEMPLATE"
)
ECHO = "option.rolling_batch=echo\n"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "serving.properties").write_text(ECHO)
    return directory


def errors(model_dir: Path, controls: str = ALL, **environ: str) -> tuple[str, ...]:
    variables = {
        "LMI_MODEL_DIR": str(model_dir),
        "SAGEMAKER_SECURE_MODE": "true",
        "SAGEMAKER_SECURITY_CONTROLS": controls,
        "SAGEMAKER_UNTRUSTED_CHANNELS": str(model_dir),
        **environ,
    }
    return mistakes(read_configuration(variables), variables)


def test_a_model_without_anything_forbidden_is_served(model_dir: Path) -> None:
    (model_dir / "model.safetensors").write_bytes(b"")
    (model_dir / "tokenizer_config.json").write_text("{}")
    assert errors(model_dir, SAGEMAKER_MAX_REQUEST_SIZE="1000", SERVING_JOB_QUEUE_SIZE="7") == ()


def test_the_request_that_loads_one_of_several_models_may_name_it(model_dir: Path) -> None:
    """Without this, a model store served none of its models in secure mode."""
    environ = {"LMI_MODEL_DIR": str(model_dir), "SAGEMAKER_SECURE_MODE": "true", "SAGEMAKER_SECURITY_CONTROLS": ALL}
    for options, refused in (({"option.model_name": "m", "minWorkers": "1"}, False), ({}, True)):
        named = {} if options else {"OPTION_MODEL_NAME": "m"}
        configuration = examine_configuration(environ | named, options)
        assert bool(mistakes(configuration, environ | named)) == refused


def test_unknown_variables_of_the_platform_are_allowed(model_dir: Path) -> None:
    assert errors(model_dir, SERVING_SOMETHING="1") == ()


def test_variables_that_set_nothing_are_allowed(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text(f"{ECHO}option.tgi_compat=true\n")
    assert errors(model_dir, USAGE_STATS="off", SM_VLLM_MAX_MODEL_LEN="100") == ()
    assert tell(errors(model_dir, SM_VLLM_SEED="1"), ["option.seed SM_VLLM_SEED must not"])


FILES: Mapping[str, tuple[str, str]] = {
    "model.py": ("def handle(inputs): pass", "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"),
    "adapters/a/model.py": ("x = 1", "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"),
    "code/inference.py": ("x = 1", "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"),
    "requirements.txt": ("requests", "DISALLOW_REQUIREMENTS_TXT"),
    "code/requirements.txt": ("requests", "DISALLOW_REQUIREMENTS_TXT"),
    "pytorch_model.bin": ("", "DISALLOW_PICKLE_FILES"),
    "deep/er/weights.PT": ("", "DISALLOW_PICKLE_FILES"),
    "adapters/a/adapter_model.pkl": ("", "DISALLOW_PICKLE_FILES"),
    "x\ny.ckpt": ("", "DISALLOW_PICKLE_FILES"),
    "tokenizer_config.json": ('{"chat_template": "x"}', "DISALLOW_CHAT_TEMPLATE"),
    "processor_config.json": ('{"chat_template": null}', "DISALLOW_CHAT_TEMPLATE"),
    "chat_template.json": ("[" * 100_000, "DISALLOW_CHAT_TEMPLATE"),
    "chat_template.jinja": ("x", "DISALLOW_CHAT_TEMPLATE"),
    "additional_chat_templates/tool_use.jinja": ("x", "DISALLOW_CHAT_TEMPLATE"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_forbidden_by_their_control_only(model_dir: Path, name: str) -> None:
    content, control = FILES[name]
    path = model_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    [error] = errors(model_dir, control)
    assert "in secure mode" in error
    if name != "model.py":
        assert error.startswith(f"{path} ")
        assert says(error.removeprefix(str(path)), f"forbidden {control}")
    others = ",".join(item.strip() for item in ALL.split(",") if item.strip() != control)
    assert not any("secure mode" in error for error in errors(model_dir, others))


def test_adapters_may_not_bring_formatters(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text(f"{ECHO}option.enable_lora=true\noption.adapter_formatters=true\n")
    assert any("option.adapter_formatters" in error and "in secure mode" in error for error in errors(model_dir))


def test_links_hide_nothing(model_dir: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "elsewhere"
    hidden.mkdir()
    (hidden / "weights.pt").write_bytes(b"")
    (model_dir / "linked").symlink_to(hidden)
    (model_dir / "loop").symlink_to(model_dir)
    assert tell(errors(model_dir), [f"{model_dir}/linked/weights.pt forbidden DISALLOW_PICKLE_FILES"])


def test_a_chat_template_in_gguf_metadata_is_forbidden(model_dir: Path) -> None:
    writer = gguf.GGUFWriter(model_dir / "model.gguf", "llama")
    writer.add_chat_template("x")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mode = SecureMode(controls=("DISALLOW_CHAT_TEMPLATE",), channels=(model_dir,))
    with raises(ConfigError, "model.gguf forbidden secure"):
        mode.check_model(model_dir)


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A model for classification, which is not served by an engine, with a class of its own."""
    directory = tmp_path / "classifier"
    directory.mkdir()
    config = {
        "model_type": "bert",
        "architectures": ["MineForSequenceClassification"],
        "auto_map": {"AutoModelForSequenceClassification": "mine.MineForSequenceClassification"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(b"")
    (directory / "tokenizer.json").write_text("{}")
    return directory


def test_secure_mode_holds_for_models_of_tasks(task_dir: Path) -> None:
    variables = {"LMI_MODEL_DIR": str(task_dir)}
    assert read_configuration(variables).answered_by is AnsweredBy.TASK
    assert not any("secure mode" in error for error in errors(task_dir))
    (task_dir / "serving.properties").write_text("option.trust_remote_code=true\n")
    assert any(says(error, "option.trust_remote_code=true forbidden secure") for error in errors(task_dir))
    (task_dir / "serving.properties").write_text("")
    (task_dir / "pytorch_model.bin").write_bytes(b"")
    assert any(
        says(error, f"{task_dir}/pytorch_model.bin forbidden DISALLOW_PICKLE_FILES") for error in errors(task_dir)
    )


@pytest.mark.parametrize(
    ("properties", "environ", "words"),
    [
        ("option.trust_remote_code=true\n", {}, "option.trust_remote_code=true forbidden"),
        ("", {"OPTION_TRUST_REMOTE_CODE": "true"}, "option.trust_remote_code=true forbidden"),
        ("option.allow_pickle=true\n", {}, "option.allow_pickle serving.properties not set"),
        ("option.chat_template={{ x }}\n", {}, "option.chat_template serving.properties not set"),
        ("", {"OPTION_CHAT_TEMPLATE": "{{ x }}"}, "not set secure mode"),
        ("option.unheard_of=1\n", {}, "option.unheard_of serving.properties not set"),
    ],
)
def test_options_that_are_forbidden(model_dir: Path, properties: str, environ: dict[str, str], words: str) -> None:
    (model_dir / "serving.properties").write_text(ECHO + properties)
    assert any(says(error, words) for error in errors(model_dir, **environ))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SAGEMAKER_SECURITY_CONTROLS": "DISALLOW_EVERYTHING"}, "SAGEMAKER_SECURITY_CONTROLS DISALLOW_EVERYTHING"),
        ({"SAGEMAKER_UNTRUSTED_CHANNELS": "/nowhere"}, "SAGEMAKER_UNTRUSTED_CHANNELS /nowhere"),
    ],
)
def test_what_cannot_be_enforced_is_said(model_dir: Path, environ: dict[str, str], words: str) -> None:
    assert any(says(error, words) for error in errors(model_dir, **environ))


def test_controls_must_be_named(model_dir: Path) -> None:
    variables = {"LMI_MODEL_DIR": str(model_dir), "SAGEMAKER_SECURE_MODE": "TRUE"}
    [error] = mistakes(read_configuration(variables), variables)
    assert says(error, "SAGEMAKER_SECURE_MODE=true SAGEMAKER_SECURITY_CONTROLS")


def test_without_secure_mode_the_other_variables_say_nothing(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("x")
    assert errors(model_dir, SAGEMAKER_SECURE_MODE="false") == ()


def test_other_spellings_of_allowed_names_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.dtype=fp16\noption.tensor_parallel_size=1\n")
    loaded = load_properties(tmp_path, {}, registry())
    SecureMode().check(loaded, None, has_custom_code=False)
