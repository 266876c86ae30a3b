"""How much memory a model is expected to take before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.models.memory import needed_memory

FILES = {"model.safetensors": 1000, "pytorch_model.bin": 1000, "model.onnx": 500, "config.json": 7}


def needed(directory: Path, code: CustomCode | None = None, **options: Any) -> int:
    properties = ServingProperties(model_dir=str(directory), **options)
    return needed_memory(
        properties, EngineSettings(runtime_dir="-", properties=properties, started=0.0, custom_code=code)
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, size in FILES.items():
        (tmp_path / name).write_bytes(bytes(size))
    return tmp_path


def test_engines_and_tasks_read_one_of_the_formats(directory: Path) -> None:
    options = ServingProperties()
    task = CustomCode(path="-", directory="-", properties={}, options=options, processes=2)
    assert needed(directory) == 1000
    assert needed(directory, task) == 2000
    assert needed(directory, kv_cache_memory_bytes="5000") == 6000
    assert needed(directory, model_id="pytorch_model.bin") == 1000


def test_own_code_may_read_all_of_them(directory: Path) -> None:
    own = CustomCode(path="-", directory="-", properties={})
    assert needed(directory, own) == 2500
    for name in ("rank0.engine", "rust_model.ot", "model.pt"):
        (directory / name).write_bytes(bytes(10))
    assert needed(directory, own) == 2530


def test_a_model_that_is_not_here_yet_takes_nothing(directory: Path) -> None:
    assert needed(directory, model_id="some/model") == 0
