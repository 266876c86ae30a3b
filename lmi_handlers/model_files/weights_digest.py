"""Digests of weights: equal for equal files, on any machine, and others for other weights of the same name.

Sizes and headers do not tell: whoever trains a model or an adapter further keeps both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.model_files.complete import ADAPTER_FILES
from lmi_handlers.model_files.needed import is_weights, needed

_OF_MODEL = "config.json"
_WHOLE = 1 << 20
"""Bytes of a model's file up to which all of it is read."""

_SAMPLE = 4096
_SAMPLES = 1024
"""Samples of a model's files together, evenly spread over their bytes: some in each layer."""

_MIN_SAMPLES = 16
"""Samples of a file, however many there are."""


def adapter_digest(folder: Path) -> str:
    """Return the digest of the adapter in `folder`: of all that engines read. Raises `LoadFailed` if that fails.

    Adapters are small, and were read shortly before, when they were checked.
    """
    files = (folder / name for name in ADAPTER_FILES)
    return _digest(file for file in files if file.is_file())


def model_digest(model: Path) -> str:
    """Return the digest of a model's configuration and weights, of which 4 MB or so are read. Raises `LoadFailed`.

    `model` is a GGUF file or a folder. A change may be missed if it fits between two samples, which are a thousandth of the
    weights apart. Folders in a folder are left out: only embedding models have weights there, and no embedding is continued.
    """
    with _reading():
        files = [model]
        if model.is_dir():
            names = sorted(file.name for file in model.iterdir() if file.is_file())
            files = [model / name for name in needed(names) if is_weights(name) or name == _OF_MODEL]
        size = sum(file.stat().st_size for file in files)
    return _digest(files, size // _SAMPLES)


def _digest(files: Iterable[Path], spacing: int = 0) -> str:
    """Return the digest of files in this order. Of a large one, a sample is read every `spacing` bytes unless that is 0."""
    digest = blake2b(digest_size=16)
    with _reading():
        for file in files:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                digest.update(size.to_bytes(8, "little"))
                for start, length in _parts(size, spacing):
                    digest.update(os.pread(opened.fileno(), length, start))
    return digest.hexdigest()


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LoadFailed(f"weights cannot be read: {error}") from error


def _parts(size: int, spacing: int) -> Iterator[tuple[int, int]]:
    """Yield where to read in a file of `size` bytes, and how many."""
    if not spacing or size <= _WHOLE:
        yield from ((start, _WHOLE) for start in range(0, size, _WHOLE))
    else:
        samples = max(_MIN_SAMPLES, size // spacing)
        yield from ((part * (size - _SAMPLE) // (samples - 1), _SAMPLE) for part in range(samples))
