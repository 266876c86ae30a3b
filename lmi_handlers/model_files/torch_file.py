"""Checks that a file of `torch.save` is whole. Nothing in it is run, and no weights are read.

Torch itself says so only while it loads the file, after it has read what is there.
"""

from __future__ import annotations

import mmap
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path

_MAX_PICKLES = 1 << 26
"""Bytes before the weights of an older file: they name each weight, in about 300 bytes."""

_MAX_OPCODES = 1_000_000
"""About 40 name a weight. A second's work: an engine reads an adapter's file while it serves."""

_NUM_PICKLES = 5
"""Of an older file: a magic number, a version, the system, the object, and the order of its storages."""

_STORAGES = {
    "ByteStorage": 1,
    "CharStorage": 1,
    "BoolStorage": 1,
    "UntypedStorage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
"""Torch's names -> bytes per value."""


def check_torch_file(file: Path) -> str:
    """Return what is wrong with the file, or "". A zip archive has its list of contents at the end."""
    with file.open("rb") as opened:
        is_archive = opened.read(2) == b"PK"
    if is_archive:
        return "" if zipfile.is_zipfile(file) else "is cut off: the end of the archive is missing"
    return _older_file(file)


def _older_file(file: Path) -> str:
    """Check a file of torch before 1.6: pickles, then each storage, with its number of values in front.

    Source: `_legacy_save` in https://github.com/pytorch/pytorch/blob/main/torch/serialization.py
    """
    size = file.stat().st_size
    storages: dict[object, int] = {}
    budget = iter(range(_MAX_OPCODES))
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), min(size, _MAX_PICKLES), access=mmap.ACCESS_READ) as memory,
    ):
        try:
            for _ in range(_NUM_PICKLES):
                storages |= _storages(memory, budget)
        except (ValueError, OverflowError):
            return "is cut off within its list of weights, or was not written by torch.save"
        needed = memory.tell() + sum(8 + count for count in storages.values())
    return "" if size >= needed else f"is cut off: it has {size} bytes, and its weights need {needed}"


def _storages(memory: mmap.mmap, budget: Iterator[int]) -> dict[object, int]:
    """Read a pickle, and return the storages that it refers to: their keys, and their bytes. Raises `ValueError`."""
    return {key: count * _STORAGES.get(kind.partition(" ")[2], 1) for kind, key, count in _references(memory, budget)}


def _references(memory: mmap.mmap, budget: Iterator[int]) -> Iterator[tuple[str, object, int]]:
    """Yield the type, the key and the number of values of each reference: ("storage", type, key, device, number, None)."""
    memo: dict[object, object] = {}
    values: list[object] = []
    for opcode, argument, _ in pickletools.genops(memory):  # type: ignore[arg-type]  # it only calls read, readline and tell
        if next(budget, None) is None:
            raise ValueError("too many opcodes")
        if opcode.name == "MARK":
            values = []
        elif opcode.name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = values[-1] if values else None
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            values.append(memo.get(argument))
        elif opcode.name == "STACK_GLOBAL":
            values[-2:] = [" ".join(map(str, values[-2:]))]
        elif opcode.name == "BINPERSID":
            match values:
                case ["storage", str(kind), key, _, int(count), *_]:
                    yield kind, key, count
        elif opcode.arg is not None:
            values.append(argument)
