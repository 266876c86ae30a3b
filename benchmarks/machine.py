"""What this machine's processor can do. A claim about speed means little without it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_X86_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_ARM_FLAGS = ("asimddp", "i8mm", "bf16", "sve")


def describe_machine() -> str:
    """Return one line about the hardware and its current load. The flags are those that matter to an engine's speed."""
    known = _ARM_FLAGS if platform.machine() in ("aarch64", "arm64") else _X86_FLAGS
    flags = _cpu().get("flags", _cpu().get("Features", "")).split()
    has = ", ".join(flag for flag in known if flag in flags)
    lacks = ", ".join(flag for flag in known if flag not in flags)
    return (
        f"{os.cpu_count()} cores of {_cpu().get('model name', platform.machine())} (has {has or 'none'} of the flags that "
        f"matter{f'; lacks {lacks}' if lacks else ''}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; load average before the start {os.getloadavg()[0]:.2f}"
    )


def busy_and_idle_seconds() -> tuple[float, float]:
    """Return the time that all cores together have worked, for whomever, and been idle."""
    user, nice, system, idle, waiting, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(others[:3])) / ticks, (idle + waiting) / ticks


def fastest_dtype() -> str:
    """Return `bfloat16` if the processor multiplies it, otherwise `float32`: emulated bfloat16 is several times slower."""
    flags = _cpu().get("flags", _cpu().get("Features", "")).split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"} & set(flags) else "float32"


def _cpu() -> dict[str, str]:
    """Return the fields of one processor core."""
    fields = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
