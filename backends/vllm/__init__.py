"""vLLM, 0.20 and later, driven step by step in the engine process."""

from __future__ import annotations

UNSUPPORTED = {"watermark": "vLLM marks all requests or none"}
