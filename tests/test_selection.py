"""Which backend `auto` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.selection import choose_backend, find_gpu, select_backend
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties

LLAMA = ("LlamaForCausalLM",)


@pytest.mark.parametrize(
    ("installed", "gpu", "architectures", "name", "words"),
    [
        ({"vllm"}, "NVIDIA", LLAMA, "vllm", "vllm is installed and there is an NVIDIA GPU"),
        ({"vllm"}, "AMD", LLAMA, "vllm", "vllm is installed and there is an AMD GPU"),
        ({"vllm"}, "NVIDIA", (), "vllm", "vllm is installed"),
        ({"vllm", "tensorrt_llm"}, "NVIDIA", LLAMA, "vllm", "vllm is installed"),
        ({"tensorrt_llm"}, "NVIDIA", LLAMA, "tensorrt_llm", "tensorrt_llm is installed"),
        ({"tensorrt_llm"}, "AMD", LLAMA, "transformers", "there is an AMD GPU only; tensorrt_llm is installed"),
        ({"vllm"}, None, LLAMA, "transformers", "there is no GPU; vllm is installed"),
        (set(), "NVIDIA", LLAMA, "transformers", "no faster engine is installed"),
        (set(), None, (), "transformers", "no faster engine is installed"),
        ({"vllm"}, "NVIDIA", ("BertForMaskedLM",), "transformers", "BertForMaskedLM is no architecture"),
        ({"vllm"}, "NVIDIA", ("T5ForConditionalGeneration",), "vllm", "vllm is installed"),
    ],
)
def test_auto(installed: set[str], gpu: str | None, architectures: tuple[str, ...], name: str, words: str) -> None:
    selection = choose_backend(installed=installed, gpu=gpu, architectures=architectures)
    assert selection.name == name
    assert selection.reason.startswith(words)


@pytest.mark.parametrize(
    ("files", "environ", "gpu"),
    [
        (["nvidia0", "nvidiactl"], {}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "0"}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, None),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, None),
        (["nvidiactl"], {}, None),
        (["dxg"], {}, "NVIDIA"),
        (["kfd"], {}, "AMD"),
        (["null"], {}, None),
    ],
)
def test_gpu_by_its_device_files(tmp_path: Path, files: list[str], environ: dict[str, str], gpu: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert find_gpu(environ, tmp_path) == gpu


def test_architecture_of_a_local_model_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    for properties in (ServingProperties(model_id=str(tmp_path)), ServingProperties(model_dir=str(tmp_path))):
        assert "BertForMaskedLM" in select_backend(properties).reason


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"architectures": null}'])
def test_config_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "architecture" not in select_backend(ServingProperties(model_dir=str(tmp_path))).reason


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (ServingProperties(rolling_batch="lmi-dist"), "lmi_dist"),
        (ServingProperties(rolling_batch="trtllm"), "tensorrt_llm"),
        (ServingProperties(rolling_batch="scheduler"), "transformers"),
        (ServingProperties(rolling_batch="disable", backend="vllm"), "vllm"),
    ],
)
def test_what_is_asked_for_is_taken(properties: ServingProperties, name: str) -> None:
    selection = select_backend(properties)
    assert (selection.name, selection.reason) == (name, "serving.properties asks for it")


def test_unknown_backend() -> None:
    with pytest.raises(ConfigError, match="unknown backend 'nonsense'; known: echo, "):
        select_backend(ServingProperties(backend="nonsense"))
