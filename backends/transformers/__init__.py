"""Serves any causal language model of the transformers library, with a rolling batch on CPU and GPU."""

from __future__ import annotations

REQUIRES = ("torch", "transformers", "accelerate")

UNSUPPORTED = {
    "adapters": "weights are served as they are",
}
