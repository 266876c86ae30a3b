"""What LMI provides and this server does not: `lmi check` and `lmi serve` name it. Handlers and configurations of LMI."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import starts
from capabilities import facts
from configurations_page import configurations
from facts import says, tell
from prompts import rendered
from serving import Server
from starts import CHECKPOINT, ECHO, Both, check, serve, write

from backends import registry
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.config.not_provided import NOT_PROVIDED, NotProvided, Place
from lmi_handlers.config.properties import load_properties
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token

environ = starts.environ
both = starts.both
pytestmark = pytest.mark.usefixtures("environ")

CONFIGURATIONS = {name: files for named in configurations().values() for name, files in named.items()}


# Features that are not supported


OPTIONS = [row for row in NOT_PROVIDED if row.place is Place.OPTION]


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_options_for_unsupported_features_are_rejected(tmp_path: Path, both: Both, row: NotProvided) -> None:
    properties = ECHO["serving.properties"] + f"{row.name}=anything\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties}))
    assert ended.status == 1
    listed = f": {', '.join(row.harmless)}" if row.lists else ""
    assert tell(ended.errors, [f"{row.name}=anything not supported {row.instead}{listed} serving.properties"])


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
            "CUSTOM_PRE_PROCESS=model.py:f not supported FastAPI's",
        ),
        ("CUSTOM_SCRIPT_FILENAME", "x.py", "CUSTOM_SCRIPT_FILENAME=x.py not supported option.entryPoint"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000", "SAGEMAKER_SAFE_PORT_RANGE 9000 ports"),
        ("SM_SGLANG_MODEL_PATH", "/m", "SM_SGLANG_MODEL_PATH=/m not supported SGLang option.model_id"),
        ("SM_LLAMA_CPP_API_KEY", "secret-1", "SM_LLAMA_CPP_API_KEY=****** not supported llama.cpp"),
        ("SM_VLLM_API_KEY", "k", "SM_VLLM_API_KEY not supported API_KEY"),
        ("HF_TASK", "object-detection", "option.task=object-detection not supported"),
        ("OPTION_BEDROCK_COMPAT", "true", "option.bedrock_compat=true not supported"),
        (
            "DJL_ENTRY_POINT",
            "djl_python.x",
            "option.entryPoint=djl_python.x not supported djl_python",
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
    assert says(error, words)


@pytest.mark.parametrize(
    ("environment", "warned"),
    [
        ({"MAX_TOTAL_TOKENS": "256"}, True),
        ({"MESSAGES_API_ENABLED": "true"}, True),
        ({"MAX_TOTAL_TOKENS": "256", "OPTION_TGI_COMPAT": "true"}, False),
        ({"MAX_TOTAL_TOKENS": "256", "OPTION_TGI_COMPAT": "false"}, False),
        ({"MAX_CONCURRENT_REQUESTS": "7"}, False),  # LMI's image reads it, too
    ],
)
def test_variables_of_tgi_without_its_api_cause_a_warning(
    tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], warned: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = both(write(tmp_path / "m", ECHO))
    assert ended.status == 0
    assert tell(ended.warnings, [f"{next(iter(environment))} TGI option.tgi_compat=true"] if warned else [])


@pytest.mark.parametrize(("prompt", "total", "warned"), [(64, 64, True), (63, 64, False), (64, None, False)])
def test_a_limit_of_prompts_that_leaves_no_answer_causes_a_warning(
    tmp_path: Path, both: Both, prompt: int, total: int | None, warned: bool
) -> None:
    limits = f"option.max_input_tokens={prompt}\n" + (f"option.max_model_len={total}\n" if total else "")
    ended = both(write(tmp_path / "m", {"serving.properties": f"{ECHO['serving.properties']}\n{limits}"}))
    assert ended.status == 0
    words = f"option.max_input_tokens={prompt} no effect option.max_model_len={total} at most {prompt - 1} tokens"
    assert tell(ended.warnings, [words] if warned else [])


def test_a_limit_of_prompts_that_mindies_answers_depend_on_is_not_said_to_have_no_effect(
    tmp_path: Path, both: Both
) -> None:
    options = "option.max_input_tokens=64\noption.max_model_len=64\noption.dialect=MindIE\n"
    ended = both(write(tmp_path / "m", {"serving.properties": f"{ECHO['serving.properties']}\n{options}"}))
    assert ended.status == 0
    (warning,) = ended.warnings
    assert says(warning, "option.max_input_tokens=64 option.max_model_len=64 option.dialect=MindIE max_new_tokens 1")
    assert "no effect" not in warning


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
    assert says(error, f"{directory / name} {function} not supported")


def test_a_script_beside_the_weights_is_rejected(tmp_path: Path, both: Both) -> None:
    weights = write(tmp_path / "weights", CHECKPOINT | {"model.py": "def handle(inputs): ..."})
    [error] = both(write(tmp_path / "m", {"serving.properties": f"option.model_id={weights}\n"})).errors
    assert says(error, f"{weights}/model.py defines handle")


def test_a_script_that_is_not_valid_python_is_rejected(tmp_path: Path, both: Both) -> None:
    [error] = both(write(tmp_path / "m", ECHO | {"model.py": "def handle(\n"})).errors
    assert error.startswith(f"{tmp_path}/m/model.py, line 1: SyntaxError: ")


def test_a_script_without_lmis_functions_is_accepted(tmp_path: Path, both: Both) -> None:
    assert both(write(tmp_path / "m", ECHO | {"model.py": "class Llama:\n    def handle(self): ...\n"})).status == 0


def test_a_requirements_file_logs_a_warning(tmp_path: Path, both: Both) -> None:
    [warning] = both(write(tmp_path / "m", ECHO | {"requirements.txt": "x\n"})).warnings
    assert says(warning, "m/requirements.txt ignored install")


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
            "option.rolling_batch=trtllm conflicts option.entryPoint=djl_python.lmi_vllm.vllm_async_service",
        ),
        (
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\nbatch_size=4\n",
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service conflicts batch_size=4",
        ),
        (
            "option.entryPoint=djl_python.huggingface\noption.rolling_batch=disable\noption.backend=vllm\n",
            "option.backend=vllm conflicts option.entryPoint=djl_python.huggingface",
        ),
        (
            "option.entryPoint=djl_python.transformers_neuronx\n",
            "option.entryPoint=djl_python.transformers_neuronx not",
        ),
        ("option.entryPoint=https://example.com/model.py\n", "option.entryPoint=https://example.com/model.py not"),
    ],
)
def test_handlers_that_are_not_supported_are_rejected(tmp_path: Path, both: Both, properties: str, words: str) -> None:
    [error] = both(write(tmp_path / "m", {"serving.properties": properties})).errors
    assert says(error, words)


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
