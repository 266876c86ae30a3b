"""How many engines serve a model, and on which GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import registry
from lmi_handlers.config.properties import load_properties
from lmi_handlers.config.replicas import plan_replicas
from lmi_handlers.core.errors import ConfigError


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
    with pytest.raises(ConfigError, match=r"minWorkers=\d needs \d GPUs, . for each engine, but there are 4"):
        plan(tmp_path, properties, 4)
