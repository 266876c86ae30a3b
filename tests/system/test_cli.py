"""The command line: `lmi`, `lmi check` and `lmi serve`. Only the last is a process of its own, except for one test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from lmi_command import ended
from serving import Server, free_port

from backends.selection import select_backend
from lmi_handlers import __version__
from lmi_handlers.config.options import as_name
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME, find_gguf

Completed = subprocess.CompletedProcess[str]


def lmi(*arguments: str, cwd: Path, **environ: str) -> Completed:
    """Run `lmi` until it ends, with only the given configuration. `lmi serve` is a process of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(CONFIGURATION)}
    clean |= {"LMI_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(free_port())}
    if arguments[0] != "serve":
        done = ended(*arguments, folder=cwd, environ=clean | environ)
        return Completed(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=clean | environ, capture_output=True, text=True, timeout=240, check=False
    )


CONFIGURATION = ("LMI_", "OPTION_", "SERVING_", "SAGEMAKER_", "HF_MODEL", "MODEL_", "LOG_", "OTEL_")


def write(directory: Path, properties: str) -> Path:
    (directory / "serving.properties").write_text(properties)
    return directory


def line_with(text: str, word: str) -> str:
    [line] = [line for line in text.splitlines() if word in line]
    return line


def assert_one_line(result: Completed, *words: str) -> None:
    """Check that the command failed with a one-line error and without a traceback."""
    assert result.returncode == 1
    [line] = [line for line in result.stderr.splitlines() if line.startswith("lmi: error: ")]
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in line


# lmi


def test_help_lists_the_commands(tmp_path: Path) -> None:
    result = lmi("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert {"serve", "check"} <= {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
    assert lmi("--version", cwd=tmp_path).stdout.rstrip().endswith(__version__)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["serve", "--port", "0"], ["serve", "--port", "x"], ["check", "x"]]
)
def test_wrong_arguments_show_the_usage(tmp_path: Path, arguments: list[str]) -> None:
    result = lmi(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: ")


def test_the_installed_command_has_this_version() -> None:
    command = Path(sys.executable).with_name("lmi")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=240, check=True)
    assert result.stdout.rstrip().endswith(__version__)


# lmi check


def test_check_shows_the_value_the_source_and_the_reader_of_each_option(tmp_path: Path) -> None:
    write(tmp_path, "option.rolling_batch=echo\njob_queue_size=7\n")
    result = lmi("check", "--all", "--model-dir", str(tmp_path), cwd=tmp_path, OPTION_MAX_ROLLING_BATCH_SIZE="5")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    head, streams, explicit, defaults, server = result.stdout.split("\n\n")
    assert says(head, f"{as_name(tmp_path.name)} echo serving.properties")
    assert "JSON lines" in streams
    assert line_with(explicit, "job_queue_size").split()[:3] == ["job_queue_size", "7", "serving.properties"]
    line = line_with(explicit, "option.max_rolling_batch_size")
    assert line.split()[1] == "5"
    assert "environment variable OPTION_MAX_ROLLING_BATCH_SIZE" in line
    assert "read by " in line
    assert line_with(defaults, "predict_timeout").split()[1:3] == ["240", "default"]
    assert line_with(server, "LMI_MODEL_DIR").split()[1:] == [str(tmp_path), "--model-dir"]
    assert line_with(server, "LMI_HOST").split()[1:] == ["127.0.0.1", "environment", "variable", "LMI_HOST"]
    assert line_with(server, "LMI_PORT").split()[2:] == ["environment", "variable", "SAGEMAKER_BIND_TO_PORT"]
    assert line_with(server, "LMI_EMF_PERIOD").split()[1:] == ["60.0", "default"]


def test_check_shows_warnings_first_and_then_why_the_backend_was_chosen(tmp_path: Path) -> None:
    write(tmp_path, "retry_limit=1\n")
    result = lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path)
    warnings, head, *_, streams, explicit, rest, server, _ = result.stdout.split("\n\n")
    selection = select_backend(ServingProperties(), find_gguf(None, None))
    assert head == f"Model {DEFAULT_MODEL_NAME} on backend {selection.name}: {selection.reason}"
    assert "JSON lines" in streams
    default, unknown = warnings.splitlines()[1:]
    assert default.startswith("  option.model_id is not set")
    assert says(unknown, "unknown retry_limit serving.properties")
    assert explicit.startswith("Set\n  retry_limit  1  ")
    assert says(rest, "options check --all")
    assert [line.split()[0] for line in server.splitlines()] == ["Server", "LMI_MODEL_DIR", "LMI_HOST", "LMI_PORT"]


@pytest.mark.parametrize(("size", "warned"), [("900T", True), ("1M", False), ("much", False)])
def test_check_warns_of_a_cache_that_does_not_fit(tmp_path: Path, size: str, warned: bool) -> None:
    write(tmp_path, f"option.rolling_batch=openvino\noption.kv_cache_memory_bytes={size}\n")
    result = lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path)
    assert (says(result.stdout, "option.kv_cache_memory_bytes=900T 989,560,464,998,400 only")) == warned


def test_check_fails_on_an_unknown_option_and_suggests_a_similar_one(tmp_path: Path) -> None:
    write(tmp_path, "option.rolling_batch=echo\noption.max_roling_batch_size=4\n")
    result = lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path)
    assert result.returncode == 1
    assert says(result.stdout, "unknown option.max_roling_batch_size option.max_rolling_batch_size")
    assert says(result.stdout.splitlines()[-1], "server start unknown Warnings exit status 1")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("option.max_rolling_batch_size=many\n", ["option.max_rolling_batch_size", "'many'"]),
        ("option.rolling_batch=openvino\noption.quantize=awq\n", ["option.quantize has value 'awq'", "int8, int4"]),
    ],
)
def test_check_and_serve_reject_the_same_errors(tmp_path: Path, properties: str, words: list[str]) -> None:
    """test_start_up.py has more."""
    write(tmp_path, properties)
    assert_one_line(lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path), *words)
    port = str(free_port())
    arguments = ["--model-dir", str(tmp_path), "--host", "127.0.0.1", "--port", port]
    assert_one_line(lmi("serve", *arguments, cwd=tmp_path), *words)


def test_check_does_not_show_secrets(tmp_path: Path) -> None:
    write(
        tmp_path,
        "option.rolling_batch=echo\noption.hf_token=hf_AbCdEf\noption.api_key=sk-123456\n"
        "option.model_id=https://user:pass9876@example.com/model\n",
    )
    result = lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path, OPTION_AWS_SECRET_ACCESS_KEY="wJalrXUt")
    shown = result.stdout + result.stderr
    for secret in ("hf_AbCdEf", "sk-123456", "pass9876", "wJalrXUt"):
        assert secret not in shown
    assert line_with(result.stdout, "option.api_key ").split()[1] == "******"


def test_the_model_directory_defaults_to_the_working_directory(tmp_path: Path) -> None:
    write(tmp_path, "option.rolling_batch=echo\n")
    head = "on backend echo: serving.properties asks for it\n\n"
    assert head in lmi("check", cwd=tmp_path).stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert head in lmi("check", cwd=elsewhere, LMI_MODEL_DIR=str(tmp_path)).stdout
    assert f"Model {DEFAULT_MODEL_NAME} on backend " in lmi("check", cwd=elsewhere).stdout


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_model_directory_is_an_error(tmp_path: Path, command: str) -> None:
    assert_one_line(lmi(command, "--model-dir", "nowhere", cwd=tmp_path), "--model-dir", "'nowhere'")


def test_properties_that_are_not_utf8_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_bytes(b"option.rolling_batch=\xff\n")
    assert_one_line(lmi("check", "--model-dir", str(tmp_path), cwd=tmp_path), "serving.properties", "UTF-8")


# lmi serve


@pytest.mark.parametrize(
    "port", ["-1", "8080 8081", *(pytest.param(port, marks=pytest.mark.long) for port in ("eighty", "0", "65536"))]
)
def test_an_invalid_port_from_sagemaker_is_an_error(tmp_path: Path, port: str) -> None:
    write(tmp_path, "option.rolling_batch=echo\n")
    assert_one_line(lmi("serve", cwd=tmp_path, SAGEMAKER_BIND_TO_PORT=port), "SAGEMAKER_BIND_TO_PORT", repr(port))


@pytest.fixture
def port_by_environment(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    directory = tmp_path / "m"
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--host", "127.0.0.1"]
    server = Server(
        directory,
        "option.rolling_batch=echo\n",
        command=command,
        port=port,
        environ={"SAGEMAKER_BIND_TO_PORT": str(port)},
    )
    yield server
    server.stop()


def test_sagemakers_port_is_used(port_by_environment: Server) -> None:
    server = port_by_environment.wait_ready()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    process = server.process
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    with pytest.raises(requests.ConnectionError):
        server.ping()


@pytest.mark.long
def test_serve_warns_of_an_unknown_option_and_starts(tmp_path: Path) -> None:
    server = Server(tmp_path / "m", "option.rolling_batch=echo\noption.max_roling_batch_size=4\n")
    try:
        server.wait_ready()
    finally:
        server.stop()
    assert says(server.log, "unknown option option.max_roling_batch_size mean")
