"""Weights files without tensors."""

from __future__ import annotations

NO_TENSORS = "\x02\0\0\0\0\0\0\0{}"
"""A complete safetensors file, as text."""

NO_TENSORS_GGUF = "GGUF\x03\0\0\0" + "\0" * 16
"""A complete GGUF file, as text."""
