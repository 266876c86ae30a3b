"""Bodies by content type, as the default functions of SageMaker's scripts read and write them.

They read and write JSON, CSV and .npy files, and read sparse matrices in .npz files. Written by hand:
sagemaker-inference-toolkit, where the formats are from, is a server that needs boto3 and scipy, and its decoder
unpickles what clients send. Source: `sagemaker_inference.decoder`, `.encoder` and `.utils` of that toolkit.
"""

from __future__ import annotations

import io
import json
from typing import Any

from lmi_handlers.custom_code.numpy_files import read_npy, read_npz

JSON = "application/json"
CSV = "text/csv"
NPY = "application/x-npy"
NPZ = "application/x-npz"
ANY = "*/*"

SUPPORTED_CONTENT_TYPES = frozenset((JSON, CSV, NPY))
"""Content types that can be written."""

OCTET_STREAM = "application/octet-stream"

TEXTS = (JSON, CSV)
"""Content types whose bodies the functions get as text."""

UTF8_TYPES = list(TEXTS)


class ContentError(Exception):
    """The client's content is of the wrong type or malformed. The answer has the status `status_code`."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.message = message


def decode(body: str | bytes, content_type: str | None) -> Any:
    """Return an array, a dict if the body is a JSON object, a matrix of scipy for .npz. Pickled objects are not loaded.

    Raises `ContentError`: 415 for other types, 400 for malformed content.
    """
    if content_type not in (JSON, CSV, NPY, NPZ):
        raise ContentError(415, f"the content type {content_type} is not supported: use {JSON}, {CSV}, {NPY} or {NPZ}")
    import numpy as np

    try:
        if content_type == JSON:
            value = json.loads(body)
            return value if isinstance(value, dict) else np.array(value)
        if content_type == CSV:  # columns of different types make a structured array
            return np.genfromtxt(io.StringIO(text(body)), dtype=None, delimiter=",", encoding="utf-8")
        return read_npy(_bytes(body)) if content_type == NPY else _read_sparse(_bytes(body))
    except (ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError) as error:
        raise ContentError(400, f"the body is not valid {content_type}: {error}") from error


def _read_sparse(body: bytes) -> Any:
    """Return a sparse matrix. Raises `ValueError` if its arrays cannot be read, which scipy would read unchecked."""
    read_npz(body)
    try:
        from scipy import sparse
    except ImportError as error:
        raise ContentError(415, f"{NPZ} needs scipy, which is not installed: add it to requirements.txt") from error
    matrix = sparse.load_npz(io.BytesIO(body))
    if hasattr(matrix, "check_format"):  # wrong indices would crash the process later
        matrix.check_format(full_check=True)
    return matrix


def encode(prediction: Any, content_type: str) -> str | bytes:
    """Return an array, or what can become one, as the content of an answer. Raises `ContentError` for other types."""
    if content_type == JSON:
        return encode_json(prediction)
    if content_type == CSV:
        return encode_csv(prediction)
    if content_type != NPY:
        raise ContentError(406, f"the content type {content_type} is not available: accept {JSON}, {CSV} or {NPY}")
    import numpy as np

    file = io.BytesIO()
    np.save(file, prediction, allow_pickle=False)
    return file.getvalue()


def encode_json(prediction: Any) -> str:
    """Return JSON, with arrays as lists."""
    return json.dumps(prediction, default=_listed)


def encode_csv(prediction: Any) -> str:
    """Return one line per row of an array."""
    import numpy as np

    lines = io.StringIO()
    np.savetxt(lines, prediction, delimiter=",", fmt="%s")
    return lines.getvalue()


def accepted(accept: str) -> list[str]:
    """Return the content types in an `Accept` header, in order and without parameters."""
    return [item.partition(";")[0].strip() for item in accept.split(",")]


def encode_accepted(prediction: Any, accept: str) -> tuple[str | bytes, str]:
    """Return the content of an answer and its type: the first in `accept` that is available. Raises `ContentError`."""
    kind = next((item for item in accepted(accept) if item in SUPPORTED_CONTENT_TYPES), accept)
    return encode(prediction, kind), kind


def text(body: str | bytes) -> str:
    """Return a body as text. Raises `ContentError` if it is not UTF-8."""
    try:
        return body if isinstance(body, str) else body.decode()
    except UnicodeDecodeError as error:
        raise ContentError(400, f"the body is not text in UTF-8: {error}") from error


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _listed(value: Any) -> object:
    if hasattr(value, "tolist"):  # arrays and numbers of numpy, tensors of torch
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
