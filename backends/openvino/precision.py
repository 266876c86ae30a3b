"""Chooses what products with quantised weights are computed in. Does not import the engine: `lmi check` shows the choice."""

from __future__ import annotations

import os
from pathlib import Path

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.gguf import GgufHeader

FLOATS = "float32"
MIXED = "int8 and float32"
"""Integers for all products with quantised weights but `down_proj`, whose share of the loss is the largest."""

INTEGERS = "int8"

_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Flags of x86 processors that multiply and add 8-bit integers in one instruction."""

_BEFORE_VNNI = {"SSE41", "AVX", "AVX2", "AVX512_CORE"}
"""Values of `ONEDNN_MAX_CPU_ISA` that keep OpenVINO from all of those instructions."""


def choose_precision(properties: ServingProperties, header: GgufHeader | None) -> tuple[str, str]:
    """Return `FLOATS`, `MIXED` or `INTEGERS`, and the reason.

    `header` is that of the model's GGUF file, or None for a checkpoint.
    """
    dtype = properties.dtype
    if dtype in ("fp16", "bf16"):
        return FLOATS, f"openvino does not compute in {dtype}"
    if dtype == "fp32":
        return FLOATS, "set by option.dtype"
    capable = multiplies_integers()
    if dtype == "int8" and capable is not False:
        return INTEGERS, "set by option.dtype"
    if not properties.quantize and (header is None or not header.quantised_types):
        return FLOATS, "the weights are not quantised"
    if not capable:
        return FLOATS, "this CPU has no instructions for int8 (VNNI or AMX)"
    return MIXED, "the weights are quantised, and this CPU has instructions for int8; option.dtype=fp32 is exact"


def multiplies_integers() -> bool | None:
    """Tell whether this CPU multiplies 8-bit integers faster than floating-point numbers. None if nobody says."""
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if allowed in _BEFORE_VNNI:
        return False
    instructions = {"avx_vnni"} if allowed.startswith("AVX2_VNNI") else _INSTRUCTIONS
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return None
    return not instructions.isdisjoint(flags) if "flags" in flags else None
