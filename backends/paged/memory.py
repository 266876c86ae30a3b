"""The memory for the KV cache."""

from __future__ import annotations

import logging
from pathlib import Path

from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.core.errors import ConfigError

logger = logging.getLogger(__name__)

_OPTION = "option.kv_cache_memory_bytes"
_SHARE_OF_CPU = 0.5
"""Of the free memory. The rest is for activations, the web workers and whatever else runs on the machine."""
_SHARE_OF_GPU = 0.9
"""Of all memory, as in vLLM. The rest is for activations."""


def choose_num_blocks(
    asked: str | None,
    *,
    bytes_per_block: int,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    free: int | None,
    available: int | None,
) -> int:
    """Return the number of blocks of the KV cache.

    `asked` is `option.kv_cache_memory_bytes`. Without it, the cache gets the `available` bytes, but at most what
    `max_num_seqs` sequences of `max_model_len` tokens need. Raises `ConfigError` if `asked` is not a size, or if not
    even one block fits. A cache of more than the `free` bytes of memory is logged, and so is one that cannot hold the
    longest sequence: the server then refuses longer ones.
    """
    longest = -(-max_model_len // block_size)
    if asked is not None:
        if excess := warn_of_excess(asked, free):
            logger.warning(excess)
        num_blocks = parse_bytes(asked, _OPTION) // bytes_per_block
    else:
        num_blocks = max_num_seqs * longest
        if available is not None:
            num_blocks = min(num_blocks, available // bytes_per_block)
    if num_blocks < 1:
        given = f"got {asked}" if asked is not None else f"and only {available} bytes are available for it"
        raise ConfigError(f"{_OPTION}: must be at least {bytes_per_block} for this model, {given}")
    if num_blocks < longest:
        logger.warning(
            "the KV cache is smaller than the longest sequence; longer requests are refused",
            extra={"kv_cache_bytes": num_blocks * bytes_per_block, "needed_bytes": longest * bytes_per_block},
        )
    return num_blocks


def warn_of_excess(asked: str, free: int | None) -> str:
    """Return a warning if `asked`, which is `option.kv_cache_memory_bytes`, is more than the `free` bytes, else "".

    Raises `ConfigError` if `asked` is not a size.
    """
    size = parse_bytes(asked, _OPTION)
    if free is None or size <= free:
        return ""
    return (
        f"{_OPTION}={asked} is {size:,} bytes, but only {free:,} bytes of memory are free: "
        "the engine may be killed when it uses them"
    )


def available_on_cpu(free: int | None) -> int | None:
    """Return how many of the `free` bytes of memory a KV cache may take by default. None if they are not known."""
    return None if free is None else int(free * _SHARE_OF_CPU)


def available_on_gpu(free: int, total: int, utilization: float | None) -> int:
    """Return the bytes of GPU memory that a KV cache may take by default, after the weights have been loaded.

    `utilization` is `option.gpu_memory_utilization`: the share of the `total` memory that everything together may use.
    """
    return max(0, int(total * (utilization or _SHARE_OF_GPU)) - (total - free))


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may still use, or None if the system does not say.

    It is what Linux counts as available, or less if the container has a limit (cgroup versions 2 and 1). `root` is the
    directory that stands for `/`.
    """
    limits = [available for line in _lines(root / "proc/meminfo") if (available := _available(line)) is not None]
    for limit, used, statistics in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/memory.usage_in_bytes",
            "sys/fs/cgroup/memory/memory.stat",
        ),
    ):
        most, now = _number(root / limit), _number(root / used)
        if most is not None and now is not None:
            # The page cache counts as used, but is given up when memory is needed.
            cached = [int(line.split()[1]) for line in _lines(root / statistics) if line.startswith("inactive_file ")]
            limits.append(max(0, most - now + sum(cached)))
    return min(limits, default=None)


def _available(line: str) -> int | None:
    return int(line.split()[1]) * 1024 if line.startswith("MemAvailable:") else None


def _number(file: Path) -> int | None:
    text = "".join(_lines(file))
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
