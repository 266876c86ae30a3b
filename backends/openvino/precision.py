"""Chooses what products with quantised weights are computed in. Does not import the engine: `lmi check` shows the choice."""

from __future__ import annotations

import os
from pathlib import Path

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.gguf import GgufHeader

INTEGERS = "int8"
FLOATS = "float32"

_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Flags of x86 processors that multiply and add 8-bit integers in one instruction."""

_BEFORE_VNNI = {"SSE41", "AVX", "AVX2", "AVX512_CORE"}
"""Values of `ONEDNN_MAX_CPU_ISA` that keep OpenVINO from those instructions."""


def choose_precision(properties: ServingProperties, header: GgufHeader | None) -> tuple[str, str]:
    """Return `INTEGERS` or `FLOATS`, and the reason.

    `header` is that of the model's GGUF file, or None for a checkpoint.
    """
    dtype = properties.dtype
    if dtype in ("fp16", "bf16"):
        return FLOATS, f"openvino does not compute in {dtype}"
    if dtype != "auto":
        return (INTEGERS if dtype == "int8" else FLOATS), "set by option.dtype"
    quantised = bool(properties.quantize) or (header is not None and bool(header.quantised_types))
    if quantised and multiplies_integers():
        return FLOATS, "exact; on this CPU, option.dtype=int8 is faster and rounds the inputs of products to 8 bits"
    return FLOATS, "exact"


def multiplies_integers() -> bool | None:
    """Tell whether this CPU multiplies 8-bit integers faster than floating-point numbers. None if nobody says."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _BEFORE_VNNI:
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return None
    return not _INSTRUCTIONS.isdisjoint(flags) if "flags" in flags else None
