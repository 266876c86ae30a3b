"""serving.properties of LMI's endpoints with several GPUs, models or adapters: what `lmi check` says of each line.

The files in tests/data/lmi_endpoints have the settings of DJL Serving's own tests and documentation, which each names.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import DATA

from lmi_handlers.config.report import effect_of
from lmi_handlers.preflight.configuration import read_configuration

FILES = DATA / "lmi_endpoints"
ENGINE = {"engine": "accepted, no effect here: the engine is chosen by option.rolling_batch and option.backend"}
ASYNC = ENGINE | {"option.async_mode": "accepted, no effect here: every engine accepts requests while it generates"}
ADAPTERS = {"option.adapters": "accepted, no effect here: adapters are what is in the folder adapters/"}
WORKERS = "accepted, no effect here: use minWorkers and maxWorkers"

NOT_READ: dict[str, tuple[str, dict[str, str]]] = {
    "accelerate": (
        "transformers",
        ENGINE
        | {
            "gpu.maxWorkers": WORKERS,
        },
    ),
    "adapters": (
        "vllm",
        ENGINE | ADAPTERS | {"option.long_lora_scaling_factors": "no effect on backend vllm: vLLM has removed it"},
    ),
    "adapters-of-a-quantised-model": ("vllm", ENGINE | ADAPTERS),
    "draft-model": ("vllm", ENGINE | {"option.speculative_config": "passed on to vllm"}),
    "many-adapters": ("vllm", ASYNC | ADAPTERS),
    "one-model-of-several": (
        "vllm",
        ENGINE | {"load_on_devices": "accepted, no effect here: see option.device_map, option.tensor_parallel_degree"},
    ),
    "sessions": ("vllm", ASYNC),
    "several-gpus": ("vllm", ENGINE),
    "several-gpus-async": ("vllm", ASYNC),
    "shared-cache": ("vllm", ENGINE | {"option.kv_transfer_config": "passed on to vllm"}),
    "tensorrt-llm": (
        "tensorrt_llm",
        # LMI does not read it either without the prefix
        {"model_loading_timeout": "unknown; did you mean option.model_loading_timeout?"}
        | {"option.async_mode": ASYNC["option.async_mode"]},
    ),
    "tensorrt-llm-mpi": (
        "tensorrt_llm",
        ENGINE | {"option.mpi_mode": "accepted, no effect here: engines start their own processes and do not need MPI"},
    ),
    "two-nodes-of-a-pipeline": ("vllm", ENGINE),
    "workers-per-device": (
        "vllm",
        ENGINE | dict.fromkeys(("gpu.minWorkers", "gpu.maxWorkers", "cpu.minWorkers", "cpu.maxWorkers"), WORKERS),
    ),
}
"""Backend, and what is said of the settings that neither it nor the server reads, by the file's name."""


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.iterdir()))
def test_effect_of_each_line(model_dir: Path, name: str) -> None:
    (model_dir / "serving.properties").write_text((FILES / f"{name}.properties").read_text())
    configuration = read_configuration({"LMI_MODEL_DIR": str(model_dir), "HOME": str(model_dir)})
    backend, not_read = NOT_READ[name]
    assert configuration.backend.name == backend
    properties, values = configuration.properties, configuration.backend.values(configuration.properties)
    found = {}
    for setting in configuration.loaded.explicit:
        effect = effect_of(setting, configuration.backend, properties)
        if not effect.startswith("read by "):
            found[setting.key] = effect
        else:
            readers = effect.removeprefix("read by ").split(", ")
            assert "server" in readers or setting.key.removeprefix("option.") in values, setting.key
    assert found.keys() == not_read.keys()
    for key, beginning in not_read.items():
        assert found[key].startswith(beginning)
