"""vLLM, 0.20 and later, driven step by step in the engine process."""

from __future__ import annotations

import logging
import os

LOG_LEVEL = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
"""vLLM's warnings are about its own insides; its own variable brings them back."""

logging.getLogger("vllm").setLevel(LOG_LEVEL)  # before it is imported, and speaks

REQUIRES = ("vllm", "llguidance")
PASSES_OPTIONS = True

UNSUPPORTED = {"watermark": "vLLM marks all requests or none"}
