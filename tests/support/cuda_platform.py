"""Prints how vLLM configures itself on eight H100s, on a machine without one. A separate program, as vLLM caches results.

Reads `[options, ...]` from standard input and writes one line per item: the resulting configuration. An item with
`"serve": [flags]` is compared with `vllm serve` and these flags instead: the line has the settings that differ.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

from serving_properties import serving_properties

from backends.base import ModelFiles
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

    from backends.vllm import DECLARATION
    from backends.vllm.engine_args import engine_arguments
    from backends.vllm.engine_config import engine_config
    from backends.vllm.errors import load_error
    from backends.vllm.offload import configure_offloading

    properties = serving_properties(**options)
    try:
        arguments = engine_arguments(path, properties)
        files = ModelFiles(path=path, eos_token_ids=(), vocab_size=0, engines=2)
        # In a container, the shared memory may have 64 MiB.
        configure_offloading(DECLARATION, properties, arguments, files, shared_memory=path)
    except ConfigError as error:
        return {"error": str(error)}
    try:
        config = engine_config(arguments)
    except Exception as error:  # noqa: BLE001  as in the adapter
        return {"error": str(load_error(error, arguments))}
    InputProcessor(config)
    transfer = config.kv_transfer_config
    return {
        "device": config.device_config.device_type,
        "second_runner": config.use_v2_model_runner,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "kv_transfer": None if transfer is None else [transfer.kv_connector, transfer.kv_connector_extra_config],
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "dtype": str(config.model_config.dtype),
        "logits_processors": config.model_config.logits_processors,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }


def differences(path: Path, options: dict[str, Any], flags: list[str]) -> dict[str, list[str]]:
    """What the server and `vllm serve` resolve differently: setting -> both values."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from backends.vllm.engine_args import engine_arguments
    from backends.vllm.engine_config import engine_config

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    served = AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", str(path), *flags]))
    theirs = settings(served.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER))
    ours = settings(engine_config(engine_arguments(path, serving_properties(**options))))
    assert ours.keys() == theirs.keys()
    return {name: [value, theirs[name]] for name, value in ours.items() if value != theirs[name]}


def settings(config: Any) -> dict[str, str]:
    """All settings of the parts of a configuration by name. What has no text of its own is left out."""
    parts = {part.name: getattr(config, part.name) for part in dataclasses.fields(config)}
    found = {name: repr(value) for name, value in parts.items() if not dataclasses.is_dataclass(value)}
    for name, part in parts.items():
        if dataclasses.is_dataclass(part):
            found |= {
                f"{name}.{field.name}": repr(getattr(part, field.name, None)) for field in dataclasses.fields(part)
            }
    return {name: text for name, text in found.items() if " object at 0x" not in text and "Config(" not in text}


if __name__ == "__main__":
    become_eight_h100()
    model = Path(sys.argv[1])
    for wanted in json.load(sys.stdin):
        flags = wanted.pop("serve", None)
        found = configured(model, wanted) if flags is None else differences(model, wanted, flags)
        print(json.dumps(found), flush=True)
