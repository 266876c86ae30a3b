"""Whether the files of a model are whole: an interrupted copy would crash the native code that maps it into memory.

What is compared is what a file's own header says with its size. Nothing but headers is read.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufTensor, read_gguf_header

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_HEADER = 100_000_000
"""The safetensors library reads no longer headers."""

MAX_JSON = 1 << 27
"""Bytes of a JSON file. The largest known tokenizer.json has a quarter of that; Python's objects may take 25 times as many."""

MAX_ADAPTER_CONFIG = 1 << 20
"""The same for adapter_config.json. An engine reads it while it serves."""

_BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""GGUF's types -> weights per block, and bytes per block. Source: ggml's block structures."""


def check_complete(model: Path) -> None:
    """Raise `ConfigError` for a file of the model that is cut off or only stands for another one.

    `model` is a GGUF file, or a folder with safetensors or pickled weights, and JSON files that every engine reads.
    """
    _check([(model, _gguf)] if model.is_file() else _files(model, _OF_MODELS))


def check_adapter_complete(folder: Path) -> None:
    """Raise `ConfigError` for a file of the adapter in `folder` that is cut off or only stands for another one.

    Nothing else in the folder is read: the engine serves requests meanwhile, and somebody else may have filled the folder.
    """
    _check(_files(folder, _OF_ADAPTERS))


def _check(files: Iterable[tuple[Path, Callable[[Path], str]]]) -> None:
    for file, check in files:
        if cause := _pointer(file) or check(file):
            raise ConfigError(f"{file} {cause}: copy or download it again")


def _files(folder: Path, checks: Mapping[str, Callable[[Path], str]]) -> Iterator[tuple[Path, Callable[[Path], str]]]:
    for pattern, check in checks.items():
        yield from ((file, check) for file in sorted(folder.glob(pattern)) if file.is_file())


def _pointer(file: Path) -> str:
    """Return what is wrong with a file that has nothing of its own in it, or ""."""
    size = file.stat().st_size
    if size == 0:
        return "is empty"
    with file.open("rb") as opened:
        is_pointer = opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    return "is a pointer of Git LFS in place of the file (git lfs pull fetches it)" if is_pointer else ""


def _gguf(file: Path) -> str:
    size = file.stat().st_size
    needed = max((_end(tensor) for tensor in read_gguf_header(file).tensors), default=0)
    return _cut_off(size, needed)


def _end(tensor: GgufTensor) -> int:
    """Return the position behind a tensor, or of its first byte if nothing is known of its type."""
    per_block, size = _BLOCKS.get(tensor.type, (1, 0))
    return tensor.offset + -(-prod(tensor.shape) // per_block) * size


class SafetensorsEntry(msgspec.Struct):
    """What a header says of a tensor. `data_offsets` count from the end of the header, and are None for metadata."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] | None = None


def read_safetensors_header(file: Path) -> tuple[int, dict[str, SafetensorsEntry]]:
    """Return where the header ends, and its tensors by name. Raises `ConfigError` if it is not a whole header.

    Source: https://huggingface.co/docs/safetensors/index#format
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise ConfigError(f"is cut off: it has {size} bytes, and its header alone is longer")
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER:
            raise ConfigError(f"is not a safetensors file: its header would have {length} bytes")
        if 8 + length > size:
            raise ConfigError(_cut_off(size, 8 + length))
        try:
            return 8 + length, msgspec.json.decode(opened.read(length), type=dict[str, SafetensorsEntry])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"is not a safetensors file: {error}") from error


def _safetensors(file: Path) -> str:
    try:
        start, header = read_safetensors_header(file)
    except ConfigError as error:
        return str(error)
    size = file.stat().st_size
    spans = [entry.data_offsets for entry in header.values() if entry.data_offsets is not None]
    if cause := _cut_off(size, start + max((stop for _, stop in spans), default=0)):
        return cause
    overlap = any(not 0 <= first <= stop for first, stop in spans) or sum(stop - first for first, stop in spans) > size
    return "is not a safetensors file: its tensors overlap" if overlap else ""


def _archive(file: Path) -> str:
    """Torch's files are zip archives, whose list of contents is at the end. Older ones are not checked."""
    with file.open("rb") as opened:
        is_archive = opened.read(2) == b"PK"
    return "is cut off: the end of the archive is missing" if is_archive and not zipfile.is_zipfile(file) else ""


def _json(file: Path, most: int = MAX_JSON) -> str:
    if (size := file.stat().st_size) > most:
        raise ConfigError(f"{file} has {size} bytes, and may have {most}")
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})"
    return ""


def _cut_off(size: int, needed: int) -> str:
    return f"is cut off: it has {size} bytes, and its header says {needed}" if size < needed else ""


_OF_MODELS: Mapping[str, Callable[[Path], str]] = {
    "*config.json": _json,
    "*.index.json": _json,
    "tokenizer.json": _json,
    "*.safetensors": _safetensors,
    "pytorch_model*.bin": _archive,
}
"""Files of a model's folder -> their check."""

_OF_ADAPTERS: Mapping[str, Callable[[Path], str]] = {
    "adapter_config.json": partial(_json, most=MAX_ADAPTER_CONFIG),
    "adapter_model.safetensors": _safetensors,
    "adapter_model.bin": _archive,
}
"""The same for an adapter."""
