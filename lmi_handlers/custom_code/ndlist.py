"""DJL's binary format of a list of arrays (`tensor/ndlist`), and numpy's archives (`tensor/npz`).

An NDList is big-endian: the number of arrays, then for each "NDAR", version 3, an optional name, the sparse format, the
data type's name in upper case, the shape with its layout, the byte order and the length and bytes of the data. Strings
have a two-byte length. Source: `ai.djl.ndarray.NDSerializer`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmi_handlers.custom_code.numpy_files import read_npy, read_npz

if TYPE_CHECKING:
    import numpy as np

_MAGIC, _VERSION = "NDAR", 3


def decode(data: bytes) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of an NDList, an .npz archive or an .npy file. Raises `ValueError` if it is none of these."""
    if data[:2] == b"PK":
        return read_npz(data)
    if data[:6] == b"\x93NUMPY":
        return [read_npy(data)]
    try:
        return _decode(data)
    except (struct.error, IndexError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the content is not an NDList: {error}") from error


def encode(arrays: Any) -> bytes:
    """Return one array, or a list of arrays, as an NDList."""
    items = arrays if isinstance(arrays, list | tuple) else [arrays]
    return struct.pack(">i", len(items)) + b"".join(_encode_array(item) for item in items)


def encode_npz(arrays: Sequence[Any]) -> bytes:
    """Return the arrays as an .npz archive."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, *arrays)
    return file.getvalue()


def _decode(data: bytes) -> list[np.ndarray[Any, Any]]:
    import numpy as np

    file = io.BytesIO(data)

    def unpack(layout: str) -> int:
        (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
        return int(value)

    def text() -> str:
        return file.read(unpack(">h")).decode()

    arrays = []
    for _ in range(unpack(">i")):
        magic, version = text(), unpack(">i")
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"the content is not an NDList of version {_VERSION}: it has {magic!r}, version {version}")
        if unpack("B"):
            text()  # a name
        text()  # the sparse format
        kind = np.dtype(text().lower())
        shape = [unpack(">q") for _ in range(unpack(">i"))]
        file.read(2 * unpack(">i"))  # the layout, one character per dimension
        big_endian = chr(unpack("B")) == ">"
        array = np.frombuffer(file.read(unpack(">i")), kind.newbyteorder(">" if big_endian else "<"))
        arrays.append(array.reshape(shape).astype(kind))
    return arrays


def _encode_array(array: Any) -> bytes:
    import numpy as np

    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    data = little.tobytes()
    return b"".join(
        [
            _text(_MAGIC),
            struct.pack(">iB", _VERSION, 0),
            _text("default"),
            _text(str(array.dtype).upper()),
            struct.pack(f">i{array.ndim}q", array.ndim, *array.shape),
            struct.pack(">i", array.ndim) + "?".encode("utf-16-be") * array.ndim,
            b"<",
            struct.pack(">i", len(data)),
            data,
        ]
    )


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
