"""The engines: token ids in, token ids out.

`BACKENDS` maps each name to the location of its class. A backend is imported only when it is chosen.
"""

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
    """Return `BACKENDS` plus what other distributions register in the entry point group `lmi_handlers.backends`."""
    return with_entry_points(BACKENDS, ENTRY_POINT_GROUP)


def load_backend_class(name: str) -> type[Backend]:
    """Import the adapter called `name`. Raises `ConfigError` if it does not exist or cannot be imported."""
    return load_class("backend", available_backends(), name, Backend)  # type: ignore[type-abstract]  # for a type check
