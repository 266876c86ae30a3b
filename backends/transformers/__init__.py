"""Any causal language model of the transformers library, with a rolling batch on CPU and GPU."""

from __future__ import annotations

from backends.transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
