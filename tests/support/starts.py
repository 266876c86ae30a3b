"""`lmi check`, and the first thing that `lmi serve` does, in the test process.

A module takes the fixtures over by their names: `both = starts.both`.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from empty_weights import NO_TENSORS
from serving import free_port
from tokenizers import Tokenizer, models

from lmi_handlers.commands.cli import main

CONFIGURATION = ("LMI_", "OPTION_", "SERVING_", "SAGEMAKER_", "HF_", "MODEL_", "DJL_", "CUDA_")
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


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Both:
    """Run `lmi check` and `lmi serve` on a directory. Both must report the same."""

    def run(directory: Path) -> Ended:
        checked, served = check(directory), serve(directory, monkeypatch, capsys)
        assert (checked.status, checked.errors, checked.warnings) == (served.status, served.errors, served.warnings)
        assert "Traceback" not in checked.text + served.text
        return checked

    return run
