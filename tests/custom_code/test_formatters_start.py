"""What `lmi serve` and `lmi check` say about formatters before and while they start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from facts import says
from serving import StartServer, lmi_check

from lmi_handlers.config.formatter_code import find_formatter_scripts
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.checks import warnings
from lmi_handlers.preflight.configuration import read_configuration

ECHO = "option.rolling_batch=echo\n"
IMPORT = "from djl_python.output_formatter import output_formatter\n"
WRITE = f"{IMPORT}\n@output_formatter\ndef write(response):\n    return response\n"


def check(directory: Path, script: str, *arguments: str, properties: str = ECHO) -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    (directory / "model.py").write_text(script)
    (directory / "serving.properties").write_text(properties)
    return lmi_check(directory, *arguments, folder=directory)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (f"{WRITE}import not_installed_here\n", "line 6 ModuleNotFoundError No not_installed_here"),
        (WRITE.replace("(response)", "(a, b)"), "line 3 @output_formatter request_output"),
        (f"{WRITE}import os\nos._exit(4)\n", "formatters exit status 4"),
        (WRITE + WRITE.replace("def write", "def other"), "only @output_formatter write"),
        ("def write(\n", "line 1 SyntaxError"),
    ],
)
def test_check_names_file_and_line(tmp_path: Path, script: str, error: str) -> None:
    ended = check(tmp_path / "m", script)
    assert ended.returncode == 1
    assert says(ended.stderr, error)


def test_check_loads_formatters_unless_told_not_to(tmp_path: Path) -> None:
    script = f"{WRITE}open('imported', 'a')\n"
    assert check(tmp_path / "m", script, "--no-code").returncode == 0
    assert not (tmp_path / "m" / "imported").exists()
    assert check(tmp_path / "m", script).returncode == 0
    assert (tmp_path / "m" / "imported").exists()


@pytest.mark.parametrize("script", ["", "def handler(inputs):\n    pass\n", WRITE.replace("@output_formatter\n", "")])
def test_a_model_py_without_a_function_that_is_called_is_named(tmp_path: Path, script: str) -> None:
    checked = check(tmp_path / "m", script)
    assert checked.returncode == 0
    assert says(checked.stdout, "m/model.py not used no handle(inputs), @input_formatter or @output_formatter")
    for properties in ("", "option.output_formatter=write\n"):
        used = check(
            tmp_path / "m", WRITE if not properties else WRITE.replace("@output_", "# "), properties=ECHO + properties
        )
        assert (used.returncode, "not used" in used.stdout) == (0, False)


def test_a_model_py_of_an_adapter_without_formatters_is_named(tmp_path: Path) -> None:
    for name, text in (("a", WRITE), ("b", WRITE.replace("@output_formatter\n", ""))):
        (tmp_path / "m" / "adapters" / name).mkdir(parents=True)
        (tmp_path / "m" / "adapters" / name / "model.py").write_text(text)
    checked = check(tmp_path / "m", WRITE, "--no-code", properties=ECHO + "option.enable_lora=true\n")
    (line,) = [line for line in checked.stdout.splitlines() if "not used" in line]
    assert "/m/adapters/b/model.py is not used: it defines no @input_formatter or @output_formatter" in line


def unused(directory: Path, **options: str) -> list[str]:
    """Return the warnings about each model.py that is not used."""
    environ = {"LMI_MODEL_DIR": str(directory)} | {f"OPTION_{name.upper()}": text for name, text in options.items()}
    return [warning for warning in warnings(read_configuration(environ)) if "not used" in warning]


@pytest.mark.parametrize("script", ["from mine import *\n", "with open(__file__):\n    from mine import *\n"])
def test_a_model_py_whose_names_are_not_known_is_not_named(tmp_path: Path, script: str) -> None:
    (tmp_path / "model.py").write_text(script)
    assert unused(tmp_path, rolling_batch="echo") == []


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_py_that_transformers_loads_is_not_named(tmp_path: Path, file: str) -> None:
    (tmp_path / "model.py").write_text("class MyModel: ...\n")
    (tmp_path / file).write_text('{"auto_map": {"AutoModelForCausalLM": "model.MyModel"}}')
    assert unused(tmp_path, rolling_batch="echo", trust_remote_code="true") == []
    assert len(unused(tmp_path, rolling_batch="echo")) == 1
    (tmp_path / file).write_text("{}")
    assert len(unused(tmp_path, rolling_batch="echo", trust_remote_code="true")) == 1


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (WRITE, "it defines no handle(inputs), and formatters do not apply to tasks"),
        ("def handler(inputs): ...\n", "it defines no handle(inputs)"),
    ],
)
def test_a_model_py_beside_a_task_is_named_with_the_cause(tmp_path: Path, script: str, cause: str) -> None:
    (tmp_path / "model.py").write_text(script)
    (tmp_path / "config.json").write_text("{}")
    assert unused(tmp_path, task="text-classification") == [f"{tmp_path}/model.py is not used: {cause}"]


def test_a_model_py_in_the_folder_of_the_model_is_named(tmp_path: Path) -> None:
    model, weights = tmp_path / "m", tmp_path / "weights"
    for folder in (model, weights):
        folder.mkdir()
    (weights / "config.json").write_text("{}")
    (weights / "model.py").write_text("def wirte(response): ...\n")
    (warning,) = unused(model, rolling_batch="echo", model_id=str(weights), output_formatter="json")
    assert warning.startswith(f"{weights}/model.py is not used: it defines no @input_formatter or @output_formatter")
    (model / "model.py").write_text(WRITE)  # which would be used in any case
    assert unused(model, rolling_batch="echo", model_id=str(weights)) == []
    (weights / "model.py").write_text(WRITE)
    (model / "model.py").unlink()
    assert unused(model, rolling_batch="echo", model_id=str(weights)) == []
    (weights / "model.py").write_text("print 'Python 2'\n")
    assert unused(model, task="ner", model_id=str(weights)) == [], "and nobody reads it"


def test_a_model_py_beside_an_asynchronous_handler_is_not_said_to_lack_its_function(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def mine(inputs): ...\nhandle = mine\n")
    (warning,) = unused(
        tmp_path, entrypoint="djl_python.lmi_vllm.vllm_async_service", model_id="org/model", rolling_batch="vllm"
    )
    assert "handle(inputs)" not in warning


def test_formatters_that_do_not_load_end_the_server(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "model.py").write_text(f"{WRITE}import not_installed_here\n")
    server = start_server(ECHO, ready=False)
    assert server.process.wait(120) == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("lmi: error: ")]
    assert line.endswith(f"{tmp_path}/m0/model.py, line 6: ModuleNotFoundError: No module named 'not_installed_here'")


def test_an_option_may_name_the_function_and_the_file(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "mine.py").write_text(
        "from djl_python.input_parser import input_formatter\n\n@input_formatter\ndef read(payload):\n    return payload\n\n"
        "def write(token, first_token, last_token, details, generated_text, id):\n    return generated_text.upper()\n"
    )
    server = start_server(f"{ECHO}option.entryPoint=mine.py\noption.output_formatter=write\n")
    answer = server.invoke({"inputs": "abc", "parameters": {"max_new_tokens": 3}})
    assert answer.text == "ABC"


def test_adapters_have_formatters_of_their_own(tmp_path: Path) -> None:
    for place, text in (("", WRITE), ("adapters/a", WRITE), ("adapters/b", "x = 1\n")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "model.py").write_text(text)
    found = find_formatter_scripts([tmp_path], None, None, with_adapters=True)
    assert [(script.adapter, script.output_formatter) for script in found] == [("", "write"), ("a", "write")]
    assert len(find_formatter_scripts([tmp_path], None, None, with_adapters=False)) == 1
    (tmp_path / "adapters" / "b" / "model.py").write_text("x = (\n")
    with pytest.raises(ConfigError, match=r"adapters/b/model.py, line 1"):
        find_formatter_scripts([tmp_path], None, None, with_adapters=True)
