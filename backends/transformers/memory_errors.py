"""Reports running out of memory as `MemoryError`, on every device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of PyTorch means that memory ran out. The CPU's allocator has no exception of its own."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)
    )


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors into `MemoryError`."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) and not isinstance(error, MemoryError):
            raise MemoryError(str(error)) from error
        raise
