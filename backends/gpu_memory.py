"""Asks NVIDIA's driver how much memory the GPUs have, by its library NVML: torch takes seconds to import."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@functools.cache
def smallest_gpu_memory(library: str = _LIBRARY) -> int | None:
    """Return the bytes of memory of the machine's smallest GPU, or None if the driver does not tell."""
    with contextlib.suppress(OSError, AttributeError, _Refused):
        return smallest(ctypes.CDLL(library))
    return None


class _Refused(Exception):
    """A function of the library returned an error."""


def smallest(nvml: Any) -> int | None:
    """Return the bytes of memory of the smallest GPU that `nvml`, the loaded library, knows, or None if there is none."""

    def call(name: str, *arguments: Any) -> None:
        if getattr(nvml, name)(*arguments) != 0:
            raise _Refused(name)

    call("nvmlInit_v2")
    try:
        count, sizes = ctypes.c_uint(), []
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            sizes.append(memory.total)
        return min(sizes, default=None)
    finally:
        nvml.nvmlShutdown()
