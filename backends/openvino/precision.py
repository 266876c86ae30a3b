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
    if not properties.quantize and not (header is not None and header.quantised_types):
        return FLOATS, "the weights are not quantised"
    if not multiplies_integers():
        return FLOATS, "this CPU has neither VNNI nor AMX"
    return INTEGERS, "the weights are quantised, and this CPU has VNNI or AMX; option.dtype=fp32 is exact and slower"


def multiplies_integers() -> bool:
    """Tell whether this is known to be a CPU that multiplies 8-bit integers faster than floating-point numbers."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _BEFORE_VNNI:
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not _INSTRUCTIONS.isdisjoint(flags)
