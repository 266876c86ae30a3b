"""A model's own modules may be called like the server's packages, except for two names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmi_command import ended
from model_store import ECHO, StoreServer
from serving import ENVIRON, lmi_check

FORMATTERS = {"formatters.py": "VALUE = 'formatters'\n"}
BACKENDS = {
    "backends/__init__.py": "from backends.part import VALUE\n",
    "backends/part.py": "VALUE = 'backends'\ndef put(queue):\n    queue.put(VALUE)\n",
}
FOLDER = {"backends/part.py": "VALUE = 'backends'\n"}
TOOLKIT = {"sagemaker_inference/decoder.py": "VALUE = 'toolkit'\n", "sagemaker_inference/__init__.py": ""}

HANDLER = "from djl_python import Output\n{}\ndef handle(inputs):\n    return Output().add_as_json({})\n"
SPAWNS = """
import multiprocessing
from backends.part import put
from djl_python import Output

def handle(inputs):
    if inputs.is_empty():
        return None
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    value = queue.get(timeout=100)
    process.join()
    return Output().add_as_json(value)
"""
WRITES = """
from djl_python.output_formatter import TextGenerationOutput, output_formatter
import backends, formatters

@output_formatter
def write(output: TextGenerationOutput) -> str:
    return f"{formatters.VALUE} {backends.VALUE}"
"""

OWN: dict[str, tuple[dict[str, str], object]] = {
    "a module": ({"model.py": HANDLER.format("import formatters", "formatters.VALUE"), **FORMATTERS}, "formatters"),
    "a package": ({"model.py": HANDLER.format("import backends", "backends.VALUE"), **BACKENDS}, "backends"),
    "a folder": ({"model.py": HANDLER.format("from backends.part import VALUE", "VALUE"), **FOLDER}, "backends"),
    "both": (
        {
            "model.py": HANDLER.format("import backends, formatters", "[formatters.VALUE, backends.VALUE]"),
            **FORMATTERS,
            **BACKENDS,
        },
        ["formatters", "backends"],
    ),
    "the toolkit's": (
        {"model.py": HANDLER.format("from sagemaker_inference import decoder", "decoder.VALUE"), **TOOLKIT},
        "toolkit",
    ),
    "in a spawned process": ({"model.py": SPAWNS, **BACKENDS}, "backends"),
}
"""The files of a model, and what its `handle` returns."""


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.mark.parametrize("case", OWN)
def test_own_code_gets_its_own_modules_from_lmi_run(tmp_path: Path, case: str) -> None:
    files, value = OWN[case]
    directory = write(tmp_path / "m", files)
    done = ended("run", "--model-dir", str(directory), "--input", "-", folder=tmp_path, environ=ENVIRON, content=b"{}")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == value


def test_lmi_check_loads_them(tmp_path: Path) -> None:
    done = lmi_check(write(tmp_path / "own", OWN["both"][0]))
    assert done.returncode == 0, done.stderr
    assert "It works." in done.stdout
    beside = {"model.py": WRITES, "serving.properties": ECHO, **FORMATTERS, **BACKENDS}
    done = lmi_check(write(tmp_path / "beside", beside))
    assert done.returncode == 0, done.stderr
    assert "The formatters in" in done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path, {"module": "", "package": "", "beside": ECHO})
    write(server.store / "module", OWN["a module"][0])
    write(server.store / "package", OWN["a package"][0])
    write(server.store / "beside", {"model.py": WRITES, **FORMATTERS, **BACKENDS})
    yield server.wait_ready()
    server.stop()


def test_each_of_several_models_gets_its_own_modules(server: StoreServer) -> None:
    answers = {name: server.generate(name, max_new_tokens=1) for name in ("module", "package", "beside")}
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert [answers[name].json() for name in ("module", "package")] == ["formatters", "backends"]
    assert answers["beside"].text == "formatters backends"


@pytest.mark.parametrize("name", ["lmi_handlers.py", "djl_python/__init__.py"])
def test_two_names_are_refused(tmp_path: Path, name: str) -> None:
    files = {"model.py": HANDLER.format("", "1"), name: ""}
    done = lmi_check(write(tmp_path / "m", files))
    assert done.returncode == 1
    assert f"{tmp_path / 'm' / name.partition('/')[0]} must have another name" in done.stderr
