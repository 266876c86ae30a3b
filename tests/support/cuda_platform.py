"""Prints how vLLM configures itself on eight H100s, on a machine without one. A separate program, as vLLM caches results.

Reads `[options, ...]` from standard input and writes one line per item: the resulting configuration.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

from serving_properties import serving_properties

from lmi_handlers.core.errors import ConfigError


def become_eight_h100() -> None:
    """Replace vLLM's queries to the CUDA driver."""
    sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("kernels")  # from its CUDA build
    import vllm.config.vllm
    from vllm.platforms import current_platform
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class EightH100(CudaPlatformBase):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * 2**30

        @classmethod
        def device_count(cls) -> int:
            return 8

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    current_platform.__class__ = EightH100
    vllm.config.vllm.HAS_TRITON = True


def configured(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an engine, with logits processors loaded as at start."""
    from vllm.v1.engine.input_processor import InputProcessor

    from backends.vllm.engine_args import engine_arguments
    from backends.vllm.engine_config import engine_config
    from backends.vllm.errors import load_error

    try:
        arguments = engine_arguments(path, serving_properties(**options))
    except ConfigError as error:
        return {"error": str(error)}
    try:
        config = engine_config(arguments)
    except Exception as error:  # noqa: BLE001  as in the adapter
        return {"error": str(load_error(error, arguments))}
    InputProcessor(config)
    return {
        "device": config.device_config.device_type,
        "second_runner": config.use_v2_model_runner,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "dtype": str(config.model_config.dtype),
        "logits_processors": config.model_config.logits_processors,
    }


if __name__ == "__main__":
    become_eight_h100()
    model = Path(sys.argv[1])
    for wanted in json.load(sys.stdin):
        print(json.dumps(configured(model, wanted)), flush=True)
