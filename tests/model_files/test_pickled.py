"""Weights in pickle files are only loaded with option.allow_pickle=true."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from empty_weights import NO_TENSORS
from facts import raises, says
from safetensors.torch import load_file
from serving import Server

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.engine.adapters import find_adapters
from lmi_handlers.model_files.pickled import check_weights


def write(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}" if file.suffix == ".json" else "")
    return folder


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["model.safetensors"], None),
        (["model.safetensors", "pytorch_model.bin", "training_args.bin"], None),
        (["model-1.safetensors", "model.safetensors.index.json", "pytorch_model-1.bin"], None),
        (["consolidated.safetensors", "optimizer.pt"], None),
        (["pytorch_model.bin"], "pytorch_model.bin"),
        (["pytorch_model-1-of-2.bin", "pytorch_model.bin.index.json"], "pytorch_model-1-of-2.bin"),
        (["other.safetensors", "pytorch_model.bin"], "pytorch_model.bin"),  # which transformers would load
        (["weights.pt"], "weights.pt"),
        (["adapter_model.bin"], "adapter_model.bin"),
        (["model.safetensors", "2_Dense/pytorch_model.bin"], "2_Dense/pytorch_model.bin"),
        (["model.safetensors", "2_Dense/pytorch_model.bin", "2_Dense/model.safetensors"], None),
    ],
)
def test_what_is_refused(tmp_path: Path, names: list[str], refused: str | None) -> None:
    folder = write(tmp_path, *names)
    check_weights(folder, ServingProperties(allow_pickle=True))
    if refused is None:
        check_weights(folder, ServingProperties())
        return
    with pytest.raises(ConfigError) as caught:
        check_weights(folder, ServingProperties())
    assert str(caught.value).startswith(f"{tmp_path / refused} is a pickle file")
    assert "option.allow_pickle=true" in str(caught.value)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"model.safetensors.index.json": {"weight_map": {"w": "pytorch_model.bin"}}}, "pytorch_model.bin"),
        ({"model.safetensors.index.json": {"weight_map": {}}}, "pytorch_model.bin"),  # which vLLM would load
        (
            {"model.safetensors.index.json": {"weight_map": {"w": "deep/w.bin"}}, "model-1.safetensors": None},
            "deep/w.bin",
        ),
        (
            {"config.json": {"transformers_weights": "adapter_model.bin"}, "model.safetensors": None},
            "adapter_model.bin",
        ),
        (
            {
                "config.json": {"transformers_weights": "deep/x.safetensors.index.json"},
                "deep/x.safetensors.index.json": {"weight_map": {"w": "w.pt"}},
                "model.safetensors": None,
            },
            "w.pt",
        ),
    ],
)
def test_the_models_own_files_name_none(tmp_path: Path, files: dict[str, object], named: str) -> None:
    """An index of safetensors and config.json say which files transformers loads, whatever their format."""
    folder = write(tmp_path, *files, "pytorch_model.bin")
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    with raises(ConfigError, f"{tmp_path / named} pickle file"):
        check_weights(folder, ServingProperties())
    check_weights(folder, ServingProperties(allow_pickle=True))


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"transformers_weights": "x.index.json"}')
    for name in ("x.index.json", "model.safetensors.index.json"):
        os.mkfifo(tmp_path / name)  # reading it would wait for ever
    check_weights(write(tmp_path, "model.safetensors"), ServingProperties())


def test_a_format_that_loads_pickles(tmp_path: Path) -> None:
    folder = write(tmp_path, "model.safetensors")
    with pytest.raises(ConfigError, match=r"option\.load_format=pt loads pickle files"):
        check_weights(folder, ServingProperties(load_format="pt"))
    check_weights(folder, ServingProperties(load_format="pt", allow_pickle=True))
    check_weights(folder, ServingProperties(load_format="safetensors"))


def test_an_adapter(tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapters" / "mine", "adapter_config.json", "adapter_model.bin")
    with raises(ConfigError, "adapter_model.bin pickle file"):
        find_adapters(ServingProperties(enable_lora=True), tmp_path)
    write(adapter, "model.safetensors")  # which no engine takes for an adapter's
    with raises(ConfigError, "adapter_model.bin pickle file"):
        find_adapters(ServingProperties(enable_lora=True), tmp_path)
    (adapter / "adapter_config.json").write_text("{}")
    torch.save({}, adapter / "adapter_model.bin")
    (adapter / "model.safetensors").write_text(NO_TENSORS)
    allowed = ServingProperties(enable_lora=True, allow_pickle=True)
    assert find_adapters(allowed, tmp_path) == {"mine": adapter}


@pytest.fixture
def pickled_model(tiny_llama: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_llama, tmp_path / "weights")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_a_server_loads_them_on_request_only(pickled_model: Path, tmp_path: Path) -> None:
    properties = f"option.rolling_batch=transformers\noption.model_id={pickled_model}\n"
    refusing = Server(tmp_path / "refusing", properties)
    try:
        assert refusing.process.wait(60) == 1
        assert says(refusing.log, f"{pickled_model}/pytorch_model.bin pickle file")
    finally:
        refusing.stop()
    allowing = Server(tmp_path / "allowing", f"{properties}option.allow_pickle=true\n")
    try:
        answer = allowing.wait_ready().invoke({"inputs": "a", "parameters": {"max_new_tokens": 2}})
        assert json.loads(answer.text)["generated_text"]
    finally:
        allowing.stop()
