"""Reads the header of a GGUF file: its metadata, and where its tensors are.

Hand-written, because the `gguf` library takes 6 s to open the default model, and transformers' reader needs torch.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf_metadata import check_metadata

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its `struct` format."""
_STRING, _ARRAY = 8, 9
_TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}
"""`ggml_type` -> its name. Others are known by their numbers only."""
_DEFAULT_ALIGNMENT = 32


class GgufTensor(msgspec.Struct, frozen=True):
    """A tensor in the file.

    `shape` has rows first. `type` is the name of a `ggml_type`, such as "Q4_0". `offset` is the position of its
    first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int


class GgufHeader(msgspec.Struct, frozen=True):
    """What a GGUF file says about its model.

    `metadata` has llama.cpp's keys, such as "llama.context_length".
    """

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def weight_types(self) -> frozenset[str]:
        """The types of all matrices."""
        return frozenset(tensor.type for tensor in self.tensors if len(tensor.shape) > 1)

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, such as "llama" or "qwen2"."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens, or None if the file does not say."""
        return self.metadata.get(f"{self.architecture}.context_length")


def read_gguf_header(file: Path) -> GgufHeader:
    """Read the header of `file`, which takes a tenth of a second. Raises `ConfigError` if it is not a GGUF file."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError) as error:
        raise ConfigError(f"option.model_id: {file} cannot be read as a GGUF file: {error}") from error
    except (ArithmeticError, KeyError, MemoryError, RecursionError, TypeError, struct.error) as error:
        reason = "its header is damaged"
        raise ConfigError(f"option.model_id: {file} cannot be read as a GGUF file: {reason}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def header(self) -> GgufHeader:
        magic, version, num_tensors, num_values = self._unpack("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("it does not start with GGUF and version 2 or 3")
        metadata = {self._string(): self._value(self._unpack("I")[0]) for _ in range(num_values)}
        check_metadata(metadata)
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        start = -(-self._position // alignment) * alignment
        placed = (msgspec.structs.replace(tensor, offset=start + tensor.offset) for tensor in tensors)
        return GgufHeader(metadata, tuple(placed))

    def _tensor(self) -> GgufTensor:
        """Return the next tensor, with its offset from the first one."""
        name = self._string()
        (num_dimensions,) = self._unpack("I")
        *shape, tensor_type, offset = self._unpack(f"{num_dimensions}QIQ")
        return GgufTensor(name, tuple(reversed(shape)), _TENSOR_TYPES.get(tensor_type, str(tensor_type)), offset)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, length = self._unpack("IQ")
            if kind in _SCALARS:
                return self._unpack(f"{length}{_SCALARS[kind]}")
            read: Callable[[], Any] = self._string if kind == _STRING else lambda: self._value(kind)
            return [read() for _ in range(length)]
        return self._unpack(_SCALARS[kind])[0]

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        start = self._position
        self._position += length
        return self._data[start : self._position].decode()

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        values = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return values
