"""What `option.distributed_executor_backend=ray` asks a cluster for, and what is refused. Needs neither Ray nor vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from facts import raises, says

from backends import declaration, registry
from backends.selection import check_gpus
from backends.vllm.ray.demand import Supply, demand, demand_in_words, supply_in_words
from backends.vllm.ray.requirements import check_requirements
from lmi_handlers.config.properties import ServingProperties, load_properties
from lmi_handlers.core.errors import ConfigError

ON_RAY = "option.rolling_batch=vllm\noption.distributed_executor_backend=ray\n"


def cluster(*cores: float, gpus: float = 0) -> Supply:
    nodes = [{"CPU": number, "GPU": gpus} if gpus else {"CPU": number} for number in cores]
    return Supply(nodes, {"CPU": 1.0, "GPU": 3.0})


@pytest.mark.parametrize(
    ("workers", "supply", "cores"),
    [
        (2, cluster(2, 2), 2),
        (2, cluster(4), 2),
        (2, cluster(8, 2), 4),  # both on the larger node
        (3, cluster(8, 8), 4),  # 5 would fit only once on each node
        (3, cluster(8, 4), 4),
        (4, cluster(3, 3), 1),
        (4, cluster(1), 1),  # too few: Ray waits for more
        (2, cluster(0, 4, 4), 4),  # a head node that runs nothing
        (2, cluster(), 1),
        (1, cluster(0.5), 1),
    ],
)
def test_workers_on_cpus_share_the_cores(workers: int, supply: Supply, cores: float) -> None:
    assert demand(workers, supply, gpus=False) == [{"CPU": cores}] * workers


def test_each_worker_gets_one_gpu() -> None:
    assert demand(3, cluster(64, gpus=8), gpus=True) == [{"GPU": 1.0}] * 3


def test_in_words() -> None:
    supply = cluster(64, 64, 8, gpus=8)
    assert demand_in_words(demand(16, supply, gpus=True)) == "16 workers with 1 GPU each"
    assert demand_in_words(demand(1, supply, gpus=False)) == "1 worker with 64 CPUs"
    assert says(supply_in_words(supply, "GPU"), "3 nodes 24 GPUs 3 free")
    assert says(supply_in_words(supply, "CPU"), "3 nodes 136 CPUs 1 free")
    assert supply_in_words(cluster(64, 64), "GPU") == "2 nodes without a GPU"
    assert supply_in_words(cluster(), "GPU") == "0 nodes without a GPU"


@pytest.mark.parametrize(
    ("degree", "environ", "words"),
    [
        ("max", {}, "option.tensor_parallel_degree max number"),
        (2, {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"}, "VLLM_USE_RAY_V2_EXECUTOR_BACKEND 0 vLLM's"),
        (2, {"VLLM_RAY_BUNDLE_INDICES": "1,0"}, "VLLM_RAY_BUNDLE_INDICES 1,0 reserves"),
        (2, {"RAY_ADDRESS": "ray://head:10001"}, "RAY_ADDRESS ray://head:10001 host:port"),
        (2, {"RAY_ADDRESS": "local"}, "RAY_ADDRESS local host:port"),
    ],
)
def test_refusals(degree: int | str, environ: dict[str, str], words: str) -> None:
    properties = ServingProperties(tensor_parallel_degree=degree)  # type: ignore[arg-type]
    with raises(ConfigError, words):
        check_requirements(properties, environ)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with raises(ConfigError, "option.distributed_executor_backend=ray ray install"):
        check_requirements(ServingProperties(tensor_parallel_degree=2), {})


def read(tmp_path: Path, text: str) -> ServingProperties:
    (tmp_path / "serving.properties").write_text(text)
    return load_properties(tmp_path, {}, registry()).properties


@pytest.mark.parametrize("backend", ["vllm", "lmi_dist"])
def test_gpus_of_this_machine_do_not_count(tmp_path: Path, backend: str) -> None:
    for_gpus = msgspec.structs.replace(declaration(backend), requires=())
    degrees = "option.tensor_parallel_degree=8\noption.pipeline_parallel_degree=2\n"
    for executor in ("", "option.distributed_executor_backend=mp\n"):
        properties = read(tmp_path, executor + degrees)
        assert not for_gpus.is_remote(properties)
        with raises(ConfigError, "16 GPUs 4"):
            check_gpus(properties, for_gpus, 4)
    properties = read(tmp_path, ON_RAY + degrees)
    assert for_gpus.is_remote(properties)
    check_gpus(properties, for_gpus, 4)


def test_an_unknown_executor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"option\.distributed_executor_backend has value 'spark'"):
        read(tmp_path, "option.distributed_executor_backend=spark\n")
