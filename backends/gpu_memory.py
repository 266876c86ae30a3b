"""Asks NVIDIA's driver how much memory the GPUs have, by its library NVML: torch takes seconds to import."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

from lmi_handlers.config.replicas import visible_gpus

_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@functools.cache
def smallest_gpu_memory(visible: str | None, library: str = _LIBRARY) -> int | None:
    """Return the bytes of memory of the smallest GPU that may be used, or None if the driver does not tell.

    `visible` is the value of `CUDA_VISIBLE_DEVICES`, or None if that is not set.
    """
    with contextlib.suppress(OSError, AttributeError, _Refused):
        return smallest(ctypes.CDLL(library), visible)
    return None


class _Refused(Exception):
    """A function of the library returned an error."""


def smallest(nvml: Any, visible: str | None = None) -> int | None:
    """Return the bytes of memory of the smallest GPU in `visible`, or None if there is none.

    `nvml` is the loaded library. Where GPUs differ, it counts them as CUDA does with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    """

    def call(name: str, *arguments: Any) -> None:
        if getattr(nvml, name)(*arguments) != 0:
            raise _Refused(name)

    call("nvmlInit_v2")
    try:
        count, sizes = ctypes.c_uint(), []
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for name in visible_gpus(visible, count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            if name.isdecimal():
                call("nvmlDeviceGetHandleByIndex_v2", int(name), ctypes.byref(handle))
            else:
                call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(handle))
            call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            sizes.append(memory.total)
        return min(sizes, default=None)
    finally:
        nvml.nvmlShutdown()
