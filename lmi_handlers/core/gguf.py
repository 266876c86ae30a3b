"""Reads the header of a GGUF file: its metadata and the types of its tensors.

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

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its `struct` format."""
_STRING, _ARRAY = 8, 9


class GgufHeader(msgspec.Struct, frozen=True):
    """What a GGUF file says about its model.

    `metadata` has llama.cpp's keys, such as "llama.context_length". `tensor_types` has the numbers of the `ggml_type`s
    in the file, such as 2 for Q4_0.
    """

    metadata: Mapping[str, Any]
    tensor_types: frozenset[int]

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
    except (KeyError, OverflowError, RecursionError, struct.error) as error:
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
        return GgufHeader(metadata, frozenset(self._tensor_type() for _ in range(num_tensors)))

    def _tensor_type(self) -> int:
        self._string()  # its name
        (num_dimensions,) = self._unpack("I")
        *_, tensor_type, _ = self._unpack(f"{num_dimensions}QIQ")
        return int(tensor_type)

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
