"""Checks that the files of a model are whole: an interrupted copy would crash the native code that maps it into memory.

What is compared is what a file's own header says with its size. Of weights, nothing but headers is read.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.model_files.needed import is_weights
from lmi_handlers.model_files.torch_file import check_torch_file
from lmi_handlers.model_files.vocabulary import check_vocabulary

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_HEADER = 100_000_000
"""The safetensors library reads no longer headers."""

MAX_JSON = 1 << 27
"""Bytes of a JSON file. The largest known tokenizer.json has a quarter of that; Python's objects may take 25 times as many."""

MAX_ADAPTER_CONFIG = 1 << 20
"""The same for adapter_config.json. An engine reads it while it serves."""

_MAX_TEMPLATE = 1 << 20
"""Characters that are read. The parser takes fewer."""

_CHARACTER = 4
"""Maximum bytes of a character in UTF-8."""

_SPLIT_NAME = re.compile(r".*-\d{5}-of-(\d{5})\.gguf", re.DOTALL)


def check_complete(model: Path, *, weights: bool = True) -> None:
    """Raise `ConfigError` for a file of the model that is cut off or only stands for another one.

    `model` is a GGUF file, or a folder with safetensors or pickled weights, and the files beside them that engines read.
    Without `weights`, only the latter are checked.
    """
    checks = {name: check for name, check in _OF_MODELS.items() if weights or not is_weights(name)}
    _check([(model, _gguf)] if model.is_file() else _files(model, checks))


def check_adapter_complete(folder: Path) -> None:
    """Raise `ConfigError` for a file of the adapter in `folder` that is cut off or only stands for another one.

    Nothing else in the folder is read: the engine serves requests meanwhile, and somebody else may have filled the folder.
    """
    _check(_files(folder, ADAPTER_FILES))


def check_json(file: Path) -> None:
    """Raise `ConfigError` for a JSON file of a model that is cut off, too long or only stands for another one."""
    _check([(file, _json)])


def _check(files: Iterable[tuple[Path, Callable[[Path], str]]]) -> None:
    for file, check in files:
        try:
            cause = _pointer(file) or check(file)
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        if cause:
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
        start = opened.read(len(_LFS_POINTER))
    if start == _LFS_POINTER[: len(start)]:
        return "is a pointer of Git LFS in place of the file (git lfs pull fetches it)"
    return ""


# Weights


def is_part(gguf_file: Path) -> bool:
    """Tell by its name whether this is one of the files that a model was split into."""
    return (match := _SPLIT_NAME.fullmatch(gguf_file.name)) is not None and int(match[1]) > 1


def _gguf(file: Path) -> str:
    header = read_gguf_header(file)
    needed = max((tensor.offset + tensor.size for tensor in header.tensors), default=0)
    if cause := _cut_off(file.stat().st_size, needed):
        return cause
    if is_part(file) or header.metadata.get("split.count", 1) not in (0, 1):
        raise ConfigError(
            f"option.model_id: {file} is one part of a split model: join the parts with `llama-gguf-split --merge`"
        )
    return ""


class SafetensorsEntry(msgspec.Struct):
    """The entry of a tensor in a header. `data_offsets` count from the end of the header, and are None for metadata."""

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


# What stands beside the weights


def _json(file: Path, most: int = MAX_JSON) -> str:
    if (size := file.stat().st_size) > most:
        raise ConfigError(f"{file} has {size} bytes, and may have {most}")
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})"
    return ""


def _text(file: Path) -> str:
    """Check that the last character is whole. A text may end with any."""
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - _CHARACTER, 0))
        end = opened.read(_CHARACTER)
    is_whole = any(end[start:].decode("utf-8", "ignore").encode() == end[start:] for start in range(len(end)))
    return "" if is_whole else "is cut off within a character"


def _template(file: Path) -> str:
    from lmi_handlers.text.chat_template import syntax_error  # only few models need it here

    if cause := _text(file):
        return cause
    with file.open(encoding="utf-8", errors="replace") as opened:
        error = syntax_error(opened.read(_MAX_TEMPLATE))
    return f"is cut off, or not a Jinja template: {error}" if error else ""


def _cut_off(size: int, needed: int) -> str:
    return f"is cut off: it has {size} bytes, and its header says {needed}" if size < needed else ""


_OF_MODELS: Mapping[str, Callable[[Path], str]] = {
    "*config.json": _json,
    "*_Pooling/config.json": _json,
    "*_Dense/config.json": _json,
    "*.index.json": _json,
    "tokenizer.json": _json,
    "tekken.json": _json,
    "vocab.json": _json,
    "added_tokens.json": _json,
    "special_tokens_map.json": _json,
    "modules.json": _json,
    "params.json": _json,
    "chat_template.json": _json,
    "config_sentence_transformers.json": _json,
    "*.safetensors": _safetensors,
    "*_Dense/*.safetensors": _safetensors,
    "pytorch_model*.bin": check_torch_file,
    "*_Dense/pytorch_model.bin": check_torch_file,
    "*.model": check_vocabulary,
    "*.model.v*": check_vocabulary,
    "*.tiktoken": check_vocabulary,
    "vocab.txt": _text,
    "merges.txt": _text,
    "chat_template.jinja": _template,
}
"""Files of a model's folder -> their check."""

ADAPTER_FILES: Mapping[str, Callable[[Path], str]] = {
    "adapter_config.json": partial(_json, most=MAX_ADAPTER_CONFIG),
    "adapter_model.safetensors": _safetensors,
    "adapter_model.bin": check_torch_file,
    "adapter_model.pt": check_torch_file,
}
"""The same for an adapter: all that engines read."""
