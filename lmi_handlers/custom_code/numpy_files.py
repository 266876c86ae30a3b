"""Numpy's .npy files and .npz archives in requests, which may be hostile.

Read by hand because `np.load` takes the memory that a file asks for, and opens archives in the place of files.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_MAX_UNPACKED = 256 * 1024 * 1024
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes. Python unpacks only these two in bounded steps."""


def read_npy(body: bytes) -> np.ndarray[Any, Any]:
    """Return the array of an .npy file. Pickled objects are not loaded.

    Raises `ValueError` before any memory is taken if its header asks for more than there is.
    """
    import numpy as np

    npy: Any = np.lib.format
    file = io.BytesIO(body)
    try:
        read_header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if math.prod(shape) * max(1, dtype.itemsize) > len(body):
            raise ValueError(f"an array of the shape {shape} needs more bytes than there are")
        file.seek(0)
        array: np.ndarray[Any, Any] = npy.read_array(file, allow_pickle=False)
    except (TypeError, KeyError, EOFError, OverflowError, RecursionError, tokenize.TokenError) as error:
        raise ValueError(f"not an .npy file: {error}") from error
    return array


def read_npz(body: bytes) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of an .npz archive. Pickled objects are not loaded.

    Raises `ValueError` before more than `_MAX_UNPACKED` bytes of memory are taken.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = archive.infolist()
            if any(entry.compress_type not in _COMPRESSIONS for entry in entries):
                raise ValueError("its arrays must be stored, or compressed with deflate")
            if sum(entry.file_size for entry in entries) > _MAX_UNPACKED:
                raise ValueError(f"its arrays must have at most {_MAX_UNPACKED} bytes")
            return [read_npy(_read(archive, entry)) for entry in entries]
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OverflowError, OSError) as error:
        raise ValueError(f"{error}") from error  # RuntimeError: it is encrypted


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return an entry. Without a size, `read` would unpack more than the directory says before it finds out."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)
