"""How many engines serve a model, and on which GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from facts import raises

from backends import registry
from backends.gpu_memory import smallest, smallest_gpu_memory
from lmi_handlers.config.properties import load_properties
from lmi_handlers.config.replicas import plan_replicas
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.configuration import read_configuration


def plan(
    tmp_path: Path, properties: str, gpus: int | None, visible: str | None = None, *, splits: bool = True
) -> tuple[str, ...]:
    (tmp_path / "serving.properties").write_text(properties)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return plan_replicas(load_properties(tmp_path, {}, registry()), environ, gpus, splits=splits)


@pytest.mark.parametrize(
    ("properties", "gpus", "replicas"),
    [
        ("", 0, 1),
        ("", None, 1),
        ("", 4, 1),  # by default, layers are split across all GPUs
        ("minWorkers=3\n", 0, 3),
        ("minWorkers=3\n", None, 3),
        ("option.tensor_parallel_degree=2\n", 0, 1),
        ("option.tensor_parallel_degree=4\n", 4, 1),
        ("option.tensor_parallel_degree=8\n", 4, 1),  # another check refuses it
        ("option.tensor_parallel_degree=1\nminWorkers=1\n", 4, 1),
    ],
)
def test_replicas_that_see_all_gpus(tmp_path: Path, properties: str, gpus: int | None, replicas: int) -> None:
    assert plan(tmp_path, properties, gpus) == ("",) * replicas


@pytest.mark.parametrize(
    ("properties", "visible", "splits", "groups"),
    [
        ("option.tensor_parallel_degree=2\n", None, True, ("0,1", "2,3")),
        ("option.tensor_parallel_degree=1\n", "4,5,6,7", True, ("4", "5", "6", "7")),
        ("option.tensor_parallel_degree=3\n", None, True, ("",)),
        ("option.tensor_parallel_degree=1\noption.pipeline_parallel_degree=2\n", None, True, ("0,1", "2,3")),
        ("option.tensor_parallel_degree=1\nminWorkers=2\n", None, True, ("0", "1")),
        ("minWorkers=2\n", "GPU-a, GPU-b,GPU-c,GPU-d", True, ("GPU-a,GPU-b", "GPU-c,GPU-d")),
        ("option.tensor_parallel_degree=1\n", None, False, ("",)),  # the backend does not split layers
        ("option.tensor_parallel_degree=1\nmaxWorkers=3\n", None, True, ("0", "1", "2")),
        ("minWorkers=4\n", None, False, ("0", "1", "2", "3")),
    ],
)
def test_each_replica_gets_its_own_of_four_gpus(
    tmp_path: Path, properties: str, visible: str | None, splits: bool, groups: tuple[str, ...]
) -> None:
    assert plan(tmp_path, properties, 4, visible, splits=splits) == groups


@pytest.mark.parametrize("properties", ["minWorkers=5\n", "minWorkers=3\noption.tensor_parallel_degree=2\n"])
def test_too_many_replicas_for_the_gpus_are_refused(tmp_path: Path, properties: str) -> None:
    with raises(ConfigError, "minWorkers= GPUs 4"):
        plan(tmp_path, properties, 4)


# The transformers backend: one engine for each GPU that holds the model

SPARSE = 30 * 2**30
"""Bytes of a file of weights without content, which takes no room on the disk."""


class FourGpus:
    """Stands in for NVIDIA's library NVML, on a machine with four GPUs of these sizes."""

    names = (b"GPU-a", b"GPU-b", b"GPU-c", b"GPU-d")

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.is_open = sizes, False

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.sizes)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = self.names.index(name) + 1 if name in self.names else 0
        return 0 if name in self.names else 6  # NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total = self.sizes[handle.value - 1]
        return 0


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(SPARSE)
    return directory


@pytest.mark.parametrize(
    ("properties", "memory", "degree", "replicas"),
    [
        pytest.param("", 80, 1, ("0", "1", "2", "3"), id="fits"),
        pytest.param("", 24, "max", ("",), id="does not fit"),
        pytest.param("", None, 1, ("0", "1", "2", "3"), id="the driver does not tell"),
        pytest.param("option.tensor_parallel_degree=max\n", 80, "max", ("",), id="max"),
        pytest.param("option.tensor_parallel_degree=2\n", 80, 2, ("0,1", "2,3"), id="two"),
        pytest.param("option.tensor_parallel_degree=1\n", 24, 1, ("0", "1", "2", "3"), id="one"),
        pytest.param("option.device_map=auto\n", 80, "max", ("",), id="device_map"),
        pytest.param("minWorkers=2\n", 80, "max", ("0,1", "2,3"), id="two workers"),
        pytest.param("maxWorkers=3\n", 80, 1, ("0", "1", "2"), id="at most three workers"),
    ],
)
def test_transformers_on_four_gpus(
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: str,
    memory: int | None,
    degree: int | str,
    replicas: tuple[str, ...],
) -> None:
    nvml = None if memory is None else FourGpus(*[(memory + more) * 2**30 for more in (1, 0, 2, 3)])
    found = None if nvml is None else smallest(nvml)
    assert found == (None if memory is None else memory * 2**30)
    monkeypatch.setattr("lmi_handlers.preflight.configuration.smallest_gpu_memory", lambda visible: found)
    monkeypatch.setattr("lmi_handlers.preflight.configuration.count_gpus", lambda environ, devices: 4)
    (model_dir / "serving.properties").write_text(f"option.backend=transformers\n{properties}")
    configuration = read_configuration({"LMI_MODEL_DIR": str(model_dir), "HOME": str(model_dir)})
    assert configuration.properties.tensor_parallel_degree == degree
    assert configuration.replicas == replicas


@pytest.mark.parametrize(
    ("visible", "memory"),
    [
        (None, 8),
        ("0", 40),
        ("0, 2,3", 24),
        ("GPU-c,GPU-d", 24),
        ("1,GPU-a", 8),
        ("", None),
        ("-1", None),
    ],
)
def test_memory_of_hidden_gpus_does_not_count(visible: str | None, memory: int | None) -> None:
    nvml = FourGpus(40, 8, 80, 24)
    assert smallest(nvml, visible) == memory
    assert not nvml.is_open


def test_memory_of_gpus_is_unknown_without_the_drivers_library() -> None:
    assert smallest_gpu_memory(None, "no-such-library.so") is None
