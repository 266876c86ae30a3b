"""The backend that `auto` chooses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import raises, says
from gguf_files import make_gguf

from backends import declaration
from backends.selection import (
    Build,
    Selection,
    check_format,
    check_gpus,
    choose_backend,
    count_gpus,
    find_gpu,
    select_backend,
)
from lmi_handlers.config.declaration import BackendDeclaration, GgufFormats
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufHeader, GgufTensor
from lmi_handlers.model_files.complete import MAX_JSON
from lmi_handlers.model_files.locate import find_config, find_gguf

LLAMA = ("LlamaForCausalLM",)


def chose(selection: Selection, name: str, reason: str) -> bool:
    """Tell whether this backend was chosen, with a reason that says these facts."""
    return selection.name == name and says(selection.reason, reason)


@pytest.mark.parametrize(
    ("vllm", "tensorrt_llm", "gpu", "architectures", "name", "reason"),
    [
        ("gpu", None, "NVIDIA", LLAMA, "vllm", "vllm is installed NVIDIA"),
        ("gpu", None, "AMD", LLAMA, "vllm", "vllm is installed AMD"),
        ("gpu", None, "NVIDIA", (), "vllm", "vllm is installed NVIDIA"),
        ("gpu", "gpu", "NVIDIA", LLAMA, "vllm", "vllm is installed NVIDIA"),
        (None, "gpu", "NVIDIA", LLAMA, "tensorrt_llm", "tensorrt_llm is installed NVIDIA"),
        ("cpu", "gpu", "NVIDIA", LLAMA, "tensorrt_llm", "tensorrt_llm is installed NVIDIA"),
        (
            "gpu",
            None,
            "NVIDIA",
            ("T5ForConditionalGeneration",),
            "vllm",
            "vllm is installed NVIDIA",
        ),
        (
            None,
            "gpu",
            "AMD",
            LLAMA,
            "transformers",
            "vllm not installed tensorrt_llm needs NVIDIA AMD",
        ),
        (
            "gpu",
            None,
            None,
            LLAMA,
            "transformers",
            "vllm needs NVIDIA AMD no GPU tensorrt_llm not installed",
        ),
        (
            "cpu",
            None,
            "NVIDIA",
            LLAMA,
            "transformers",
            "vllm CPU build only option.rolling_batch=vllm tensorrt_llm not installed",
        ),
        (None, None, "NVIDIA", (), "transformers", "vllm not installed; tensorrt_llm not installed"),
        (
            "gpu",
            None,
            "NVIDIA",
            ("BertForMaskedLM",),
            "transformers",
            "engines not BertForMaskedLM",
        ),
    ],
)
def test_auto(
    vllm: Build | None,
    tensorrt_llm: Build | None,
    gpu: str | None,
    architectures: tuple[str, ...],
    name: str,
    reason: str,
) -> None:
    builds = {"vllm": vllm, "tensorrt_llm": tensorrt_llm}
    candidates = [declaration("vllm"), declaration("tensorrt_llm")]
    assert chose(choose_backend(candidates, builds=builds, gpu=gpu, architectures=architectures), name, reason)


def test_auto_with_adapters() -> None:
    """An engine without adapters is not chosen, and the log says so."""
    without = BackendDeclaration(name="mine", location="", unsupported={"adapters": "it has none"})
    for adapters, expected in (
        (False, Selection("mine", "mine is installed")),
        (True, Selection("transformers", "mine does not support adapters (option.enable_lora)")),
    ):
        asked = ServingProperties(enable_lora=adapters)
        found = choose_backend([without], builds={"mine": "cpu"}, gpu=None, architectures=LLAMA, properties=asked)
        assert found == expected
    assert "adapters" in declaration("openvino").unsupported


@pytest.mark.parametrize(
    ("quantize", "expected"),
    [
        ("awq", ("vllm", "vllm is installed NVIDIA")),
        ("bitsandbytes4", ("mine", "mine is installed")),
        (
            "eetq",
            ("transformers", "vllm not option.quantize=eetq mine"),
        ),
    ],
)
def test_auto_with_a_quantisation(quantize: str, expected: tuple[str, str]) -> None:
    """An engine that does not have the method is not chosen."""
    mine = BackendDeclaration(name="mine", location="", choices={"quantize": ("bitsandbytes4",)})
    builds: dict[str, Build | None] = {"vllm": "gpu", "mine": "gpu"}
    asked = ServingProperties(quantize=quantize)
    candidates = [declaration("vllm"), mine]
    found = choose_backend(candidates, builds=builds, gpu="NVIDIA", architectures=LLAMA, properties=asked)
    assert chose(found, *expected)


@pytest.mark.parametrize(
    ("gpus", "build", "gpu", "name"),
    [
        (("NVIDIA",), "gpu", "NVIDIA", "mine"),
        (("NVIDIA",), "gpu", "AMD", "vllm"),
        (("NVIDIA",), None, "NVIDIA", "vllm"),
        ((), "cpu", None, "mine"),
        ((), None, None, "transformers"),
    ],
)
def test_auto_with_a_backend_of_higher_priority(
    gpus: tuple[str, ...], build: Build | None, gpu: str | None, name: str
) -> None:
    mine = BackendDeclaration(name="mine", location="my_engine:MyBackend", priority=30, gpus=gpus)
    builds: dict[str, Build | None] = {"mine": build, "vllm": "gpu"}
    chosen = choose_backend([mine, declaration("vllm")], builds=builds, gpu=gpu, architectures=())
    assert chosen.name == name


READS_GGUF = BackendDeclaration(
    name="mine",
    location="my_engine:MyBackend",
    priority=5,
    cpu_only=True,
    reads_gguf=GgufFormats(("llama", "qwen2"), ("F16", "Q4_0")),
)


@pytest.mark.parametrize(
    ("build", "transformers", "gpu", "gguf", "chosen"),
    [
        ("gpu", None, None, ("llama", "Q4_0"), ("mine", "mine is installed reads GGUF")),
        ("gpu", "cpu", None, ("llama", "Q4_0"), ("mine", "mine is installed reads GGUF")),
        ("gpu", "gpu", None, ("qwen2", "F16"), ("mine", "mine is installed reads GGUF")),
        ("gpu", "cpu", "NVIDIA", ("llama", "Q4_0"), ("mine", "mine is installed reads GGUF")),
        ("gpu", None, "NVIDIA", ("llama", "Q4_0"), ("mine", "mine is installed reads GGUF")),
        (
            "gpu",
            "gpu",
            "NVIDIA",
            ("llama", "Q4_0"),
            ("transformers", "mine not use NVIDIA"),
        ),
        (None, "cpu", None, ("llama", "Q4_0"), ("transformers", "mine not installed")),
        ("gpu", "cpu", None, None, ("transformers", "mine only GGUF")),
        (
            "gpu",
            "cpu",
            None,
            ("gemma3", "Q4_0"),
            ("transformers", "mine only GGUF llama qwen2 not gemma3"),
        ),
        (
            "gpu",
            "cpu",
            None,
            ("llama", "Q5_K"),
            ("transformers", "mine only GGUF F16 Q4_0 not Q5_K"),
        ),
    ],
)
def test_auto_with_a_backend_that_reads_gguf(
    build: Build | None,
    transformers: Build | None,
    gpu: str | None,
    gguf: tuple[str, str] | None,
    chosen: tuple[str, str],
) -> None:
    header = None
    if gguf is not None:
        header = GgufHeader({"general.architecture": gguf[0]}, (GgufTensor("output.weight", (32, 256), gguf[1], 0),))
    builds = {"mine": build, "transformers": transformers}
    assert chose(choose_backend([READS_GGUF], builds=builds, gpu=gpu, architectures=(), gguf=header), *chosen)


NAMES_ARCHITECTURES = BackendDeclaration(
    name="mine",
    location="my_engine:MyBackend",
    priority=5,
    reads_gguf=GgufFormats(("llama",), ("Q4_0",)),
    architectures=("LlamaForCausalLM", "Qwen2ForCausalLM"),
)


@pytest.mark.parametrize(
    ("architectures", "gguf", "chosen"),
    [
        (LLAMA, None, ("mine", "mine is installed serves architecture")),
        (("GPT2LMHeadModel",), None, ("transformers", "mine not GPT2LMHeadModel")),
        ((), None, ("transformers", "mine not before files")),
        ((), "llama", ("mine", "mine is installed reads GGUF")),
        ((), "qwen2", ("transformers", "mine only GGUF llama not qwen2")),
    ],
)
def test_auto_with_a_backend_that_names_architectures(
    architectures: tuple[str, ...], gguf: str | None, chosen: tuple[str, str]
) -> None:
    header = (
        None if gguf is None else GgufHeader({"general.architecture": gguf}, (GgufTensor("x", (32, 256), "Q4_0", 0),))
    )
    builds: dict[str, Build | None] = {"mine": "cpu"}
    selection = choose_backend([NAMES_ARCHITECTURES], builds=builds, gpu=None, architectures=architectures, gguf=header)
    assert chose(selection, *chosen)
    check_format(NAMES_ARCHITECTURES, None)


def test_a_backend_that_reads_gguf_gets_nothing_else(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    with raises(ConfigError, "option.model_id: only GGUF"):
        check_format(READS_GGUF, None)
    with raises(ConfigError, "tiny.gguf only F16 Q4_0 not F32"):
        check_format(READS_GGUF, file)
    check_format(declaration("transformers"), file)
    check_format(declaration("transformers"), None)


def test_weights_are_not_quantised_twice() -> None:
    """The default model has 4 bits per weight."""
    properties, openvino, file = ServingProperties(quantize="int8"), declaration("openvino"), find_gguf(None, None)
    check_format(openvino, file)
    check_format(openvino, None, properties)
    with raises(ConfigError, "option.quantize=int8 quantised Q4_1 Q8_0"):
        check_format(openvino, file, properties)


def test_integers_need_quantised_weights(tmp_path: Path) -> None:
    properties, openvino = ServingProperties(dtype="int8"), declaration("openvino")
    check_format(openvino, find_gguf(None, None), properties)
    check_format(openvino, None, ServingProperties(dtype="int8", quantize="int4"))
    half = make_gguf(tmp_path / "half.gguf", matrices=np.float16)
    for file in (None, half):
        with raises(ConfigError, "option.dtype: int8 option.quantize=int8"):
            check_format(openvino, file, properties)


@pytest.mark.parametrize(
    ("files", "environ", "gpu"),
    [
        (["nvidia0", "nvidiactl"], {}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "0"}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, None),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, None),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1,0"}, None),
        (["nvidiactl"], {}, None),
        (["dxg"], {}, "NVIDIA"),
        (["kfd"], {}, "AMD"),
        (["null"], {}, None),
    ],
)
def test_find_gpu(tmp_path: Path, files: list[str], environ: dict[str, str], gpu: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert find_gpu(environ, tmp_path) == gpu


def select(properties: ServingProperties, cache_dir: Path) -> Selection:
    return select_backend(properties, None, find_config(properties, cache_dir))


def test_auto_reads_the_architecture_of_a_local_model(tmp_path: Path) -> None:
    (folder := tmp_path / "a").mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    for properties in (
        ServingProperties(model_id=str(folder)),
        ServingProperties(model_dir=str(folder)),
        ServingProperties(model_id="a", model_dir=str(tmp_path)),
    ):
        assert "BertForMaskedLM" in select(properties, tmp_path).reason


def test_auto_reads_the_architecture_of_a_hub_model_that_has_been_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    for branch, commit, name in (("main", "1" * 40, "BertForMaskedLM"), ("other", "2" * 40, "ViTModel")):
        (snapshot := repository / "snapshots" / commit).mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({"architectures": [name]}))
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
    assert "BertForMaskedLM" in select(ServingProperties(model_id="org/name"), tmp_path).reason
    assert "ViTModel" in select(ServingProperties(model_id="org/name", revision="other"), tmp_path).reason
    for properties in (
        ServingProperties(model_id="org/name", revision="absent"),
        ServingProperties(model_id="org/absent"),
        ServingProperties(model_id="org/na..me"),
    ):
        assert find_config(properties, tmp_path) is None


def test_a_config_that_is_larger_than_any_is_not_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    os.truncate(config, MAX_JSON)
    assert find_config(ServingProperties(model_dir=str(tmp_path)), tmp_path) == config
    os.truncate(config, MAX_JSON + 1)
    assert find_config(ServingProperties(model_dir=str(tmp_path)), tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"architectures": null}'])
def test_config_without_architectures(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "architecture" not in select(ServingProperties(model_dir=str(tmp_path)), tmp_path).reason


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (ServingProperties(rolling_batch="lmi-dist"), "lmi_dist"),
        (ServingProperties(rolling_batch="trtllm"), "tensorrt_llm"),
        (ServingProperties(rolling_batch="scheduler"), "transformers"),
        (ServingProperties(rolling_batch="disable", backend="vllm"), "vllm"),
    ],
)
def test_configured_backend_is_chosen(properties: ServingProperties, name: str) -> None:
    selection = select_backend(properties)
    assert (selection.name, selection.reason) == (name, "serving.properties asks for it")


def test_unknown_backend() -> None:
    with pytest.raises(ConfigError, match="unknown backend 'nonsense'; known: echo, "):
        select_backend(ServingProperties(backend="nonsense"))


@pytest.mark.parametrize(
    ("files", "environ", "count"),
    [
        (["nvidia0", "nvidia1", "nvidiactl"], {}, 2),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1,-1,0"}, 1),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 2),
        (["null"], {"CUDA_VISIBLE_DEVICES": "0"}, 0),
        (["dxg"], {}, None),
        (["kfd"], {}, None),
    ],
)
def test_count_gpus(tmp_path: Path, files: list[str], environ: dict[str, str], count: int | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert count_gpus(environ, tmp_path) == count


@pytest.fixture
def tensorrt_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes TensorRT-LLM look installed to code that does not import it."""
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("tensorrt_llm")
@pytest.mark.parametrize(("tensor", "pipeline", "gpus"), [(4, 1, 2), (2, 2, 3), (2, 1, 1), (2, 1, 0)])
def test_too_few_gpus(tensor: int, pipeline: int, gpus: int) -> None:
    properties = ServingProperties(tensor_parallel_degree=tensor, pipeline_parallel_degree=pipeline)
    with raises(ConfigError, f"{tensor * pipeline} GPUs {gpus}"):
        check_gpus(properties, declaration("tensorrt_llm"), gpus)


@pytest.mark.usefixtures("tensorrt_llm")
@pytest.mark.parametrize(
    ("degree", "backend", "gpus"),
    [("max", "tensorrt_llm", 0), (2, "tensorrt_llm", 2), (8, "tensorrt_llm", None), (8, "transformers", 0)],
)
def test_enough_gpus_or_an_unknown_number(degree: Any, backend: str, gpus: int | None) -> None:
    check_gpus(ServingProperties(tensor_parallel_degree=degree), declaration(backend), gpus)


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({}, "transformers", "option.task=text-embedding"),
        ({"rolling_batch": "echo"}, "echo", "serving.properties"),
        ({"rolling_batch": "vllm"}, "vllm", "serving.properties"),
        ({"rolling_batch": "lmi-dist"}, "transformers", "lmi_dist not embed"),
        ({"rolling_batch": "disable", "backend": "openvino"}, "transformers", "openvino not embed"),
    ],
)
def test_embeddings_come_from_a_backend_that_computes_them(options: dict[str, str], name: str, reason: str) -> None:
    properties = ServingProperties(task="text-embedding", **options)  # type: ignore[arg-type]  # only text options
    assert chose(select_backend(properties), name, reason)
    assert properties.rolling
