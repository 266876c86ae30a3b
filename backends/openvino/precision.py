"""Chooses what products with quantised weights are computed in. Does not import the engine: `lmi check` shows the choice."""

from __future__ import annotations

import os
from pathlib import Path

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.gguf import GgufHeader

FLOATS = "float32"
INTEGERS = "int8"
INTEGERS_AND_BFLOAT16 = "int8 and bfloat16"
"""Products with quantised weights use integers. All else is in bfloat16, except logits and the angles of positions."""

_INTEGER_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Flags of x86 processors that multiply and add 8-bit integers in one instruction."""

_BFLOAT16_FLAGS = {"avx512_bf16", "avx512_vnni"}
"""Flags of x86 processors on which OpenVINO computes in bfloat16. Those with AMX have them, too."""

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that keep OpenVINO from instructions, by their levels. The first one that is set counts."""

_BEFORE_VNNI = {"SSE41", "AVX", "AVX2", "AVX512_CORE"}
"""Levels without any of the instructions for integers."""

_BEFORE_BFLOAT16 = {*_BEFORE_VNNI, "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE_VNNI"}
"""Levels without those for bfloat16."""


def choose_precision(properties: ServingProperties, header: GgufHeader | None) -> tuple[str, str]:
    """Return `FLOATS`, `INTEGERS` or `INTEGERS_AND_BFLOAT16`, and the reason.

    `header` is that of the model's GGUF file, or None for a checkpoint.
    """
    dtype = properties.dtype
    if dtype in ("fp16", "bf16"):
        return FLOATS, f"openvino does not compute in {dtype}"
    if dtype == "fp32":
        return FLOATS, "set by option.dtype"
    capable = multiplies_integers()
    integers = INTEGERS_AND_BFLOAT16 if multiplies_bfloat16() else INTEGERS
    if dtype == "int8":
        return (FLOATS, _why_no_integers()) if capable is False else (integers, "set by option.dtype")
    if not is_quantised(properties, header):
        return FLOATS, "the weights are not quantised"
    if not capable:
        return FLOATS, _why_no_integers()
    return integers, "the weights are quantised, and this CPU has instructions for int8; option.dtype=fp32 is exact"


def is_quantised(properties: ServingProperties, header: GgufHeader | None) -> bool:
    """Tell whether weights are integers with scales, in the GGUF file with this `header` or once they are converted."""
    return properties.quantize is not None or (header is not None and bool(header.quantised_types))


def multiplies_integers() -> bool | None:
    """Tell whether this CPU multiplies 8-bit integers faster than floating-point numbers. None if that is unknown."""
    instructions, flags = _allowed_integer_flags(), _flags()
    if not instructions:
        return False
    return not instructions.isdisjoint(flags) if flags else None


def multiplies_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16 numbers faster than those of float32."""
    _, allowed = _limit()
    return allowed not in _BEFORE_BFLOAT16 and _flags() >= _BFLOAT16_FLAGS


def _why_no_integers() -> str:
    name, level = _limit()
    if _flags() & (_INTEGER_FLAGS - _allowed_integer_flags()):
        return f"{name}={level} keeps openvino from this CPU's instructions for int8 (VNNI or AMX)"
    return "this CPU has no instructions for int8 (VNNI or AMX)"


def _allowed_integer_flags() -> set[str]:
    _, level = _limit()
    if level in _BEFORE_VNNI:
        return set()
    return {"avx_vnni"} if level.startswith("AVX2_VNNI") else _INTEGER_FLAGS


def _limit() -> tuple[str, str]:
    """Return the variable that limits the instructions, and their level in capitals. Both are "" if none does."""
    return next(((name, level.upper()) for name in _LIMITS if (level := os.environ.get(name))), ("", ""))


def _flags() -> set[str]:
    """Return the words of /proc/cpuinfo, or none if it does not tell flags as Linux does on x86."""
    try:
        words = {*Path("/proc/cpuinfo").read_text().split()}
    except OSError:
        return set()
    return words if "flags" in words else set()
