"""Reads the header of a GGUF file: its metadata, and where its tensors are.

Hand-written, because the `gguf` library takes 6 s to open the default model, and transformers' reader needs torch.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf_metadata import check_metadata

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its `struct` format."""
_STRING, _ARRAY = 8, 9
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""`ggml_type` -> its name, weights per block, and bytes per block. Others are known by their numbers only.

Source: ggml's table `type_traits`, https://github.com/ggml-org/ggml/blob/master/src/ggml.c
"""
_MAX_DIMENSIONS = 4
"""ggml has no more."""
MAX_HEADER = 100_000_000
"""Bytes. The largest vocabularies take a tenth of it."""
_DEFAULT_ALIGNMENT = 32


class GgufTensor(msgspec.Struct, frozen=True):
    """A tensor in the file.

    `shape` has rows first. `type` is the name of a `ggml_type`, such as "Q4_0". `offset` is the position of its
    first byte in the file, and `size` how many bytes it has, 0 if nothing is known of its type.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int = 0


class GgufHeader(msgspec.Struct, frozen=True):
    """The contents of a GGUF file without its weights.

    `metadata` has llama.cpp's keys, such as "llama.context_length".
    """

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def weight_types(self) -> frozenset[str]:
        """The types of all matrices."""
        return frozenset(tensor.type for tensor in self.tensors if len(tensor.shape) > 1)

    @property
    def quantised_types(self) -> frozenset[str]:
        """The types of the matrices whose weights are not floating-point numbers."""
        return self.weight_types - {"F64", "F32", "F16", "BF16"}

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
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {num_dimensions} dimensions, and may have {_MAX_DIMENSIONS}")
        *shape, tensor_type, offset = self._unpack(f"{num_dimensions}QIQ")
        kind, per_block, block = TENSOR_TYPES.get(tensor_type, (str(tensor_type), 1, 0))
        return GgufTensor(name, tuple(reversed(shape)), kind, offset, -(-prod(shape) // per_block) * block)

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
        start = self._skip(self._unpack("Q")[0])
        return self._data[start : self._position].decode()

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        return struct.unpack_from(layout, self._data, self._skip(struct.calcsize(layout)))

    def _skip(self, size: int) -> int:
        """Go on by `size` bytes. Returns the position before that. Raises `ValueError` if the header ends earlier."""
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise ValueError(f"it is cut off: its {len(self._data)} bytes end within its header")
        if self._position > MAX_HEADER:
            raise ValueError(f"its header has more than {MAX_HEADER} bytes")
        return start
