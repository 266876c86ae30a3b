"""The names that the library publishes here."""

from __future__ import annotations

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.utils import RequestError

__all__ = ["LoRARequest", "RequestError"]
