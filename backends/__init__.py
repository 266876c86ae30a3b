"""The engines: token ids in, token ids out. `BACKENDS` maps a name to where its class lives; nothing is imported until chosen."""

from __future__ import annotations

from backends.base import Backend
from lmi_handlers.core.plugins import load_class, with_entry_points

BACKENDS: dict[str, str] = {
    "echo": "backends.echo:EchoBackend",
    "transformers": "backends.transformers.backend:TransformersBackend",
    "vllm": "backends.vllm.backend:VLLMBackend",
    "lmi_dist": "backends.lmi_dist.backend:LmiDistBackend",
    "tensorrt_llm": "backends.tensorrt_llm.backend:TensorRTLLMBackend",
}

ENTRY_POINT_GROUP = "lmi_handlers.backends"


def available_backends() -> dict[str, str]:
    """`BACKENDS` and what other distributions register under the entry point group `lmi_handlers.backends`."""
    return with_entry_points(BACKENDS, ENTRY_POINT_GROUP)


def load_backend_class(name: str) -> type[Backend]:
    """Import the adapter called `name`. Raises `ConfigError` where there is none, or none that can be imported."""
    return load_class("backend", available_backends(), name, Backend)  # type: ignore[type-abstract]  # only compared with
