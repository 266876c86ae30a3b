"""Tells which load failures may go away by themselves: lack of memory, and device, file system or network errors."""

from __future__ import annotations

import errno
import re
import socket

from lmi_handlers.core.errors import ConfigError, LoadFailed

_ERRNOS = {
    getattr(errno, name, None)
    for name in (
        *("ENOMEM", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE"),
        *("EIO", "EREMOTEIO", "ESTALE", "EAGAIN", "EBUSY", "ETIMEDOUT"),
        *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ENETDOWN", "ENETUNREACH", "EHOSTUNREACH", "ENOTCONN"),
    )
} - {None}

# PyTorch raises a plain RuntimeError for most of these, and engines reword the message.
_WORDS = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|gloo/transport|"
    r"(CUDA|HIP|NCCL|RCCL|XPU) error|CUDNN_STATUS|CUBLAS_STATUS",
    re.IGNORECASE,
)


def load_failure(verdict: ConfigError, cause: BaseException) -> ConfigError | LoadFailed:
    """Return `verdict`, as a `LoadFailed` if its cause suggests that another try may succeed without any change."""
    return LoadFailed(str(verdict)) if _may_pass(cause) else verdict


def _may_pass(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError | TimeoutError | socket.gaierror):
            return True
        if isinstance(error, OSError) and error.errno in _ERRNOS:
            return True
        if isinstance(error, RuntimeError) and _WORDS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
