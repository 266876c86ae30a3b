"""`djl_python.encode_decode`: content by its type, as the inference toolkit's default handlers read and write it."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output

_HEADERS = ("question", "context", "inputs")


def decode(inputs: Input, content_type: str | None, key: str | None = None, require_csv_headers: bool = True) -> Any:  # noqa: FBT001, FBT002, RUF100  DJL's signature
    """Return the value of a content: of JSON as it is, of other types mostly as `{"inputs": value}`."""
    kind = content_type or ""
    if "application/json" in kind:
        return inputs.get_as_json(key)
    if not kind:
        return inputs.get_as_json(key) if inputs.get_as_bytes(key) else {"inputs": ""}
    if "text/csv" in kind:
        return decode_csv(inputs, require_csv_headers)
    if "text/plain" in kind:
        return {"inputs": [inputs.get_as_string(key)]}
    if kind.startswith("image/"):
        return {"inputs": inputs.get_as_image(key)}
    if "tensor/npz" in kind:
        return {"inputs": inputs.get_as_npz(key)}
    if kind in ("tensor/ndlist", "application/x-npy"):
        return {"inputs": inputs.get_as_numpy(key)}
    if kind == "application/x-www-form-urlencoded":
        return {"inputs": inputs.get_as_string(key)}
    return {"inputs": inputs.get_as_bytes(key)}


def decode_csv(inputs: Input, require_headers: bool = True) -> Any:  # noqa: FBT001, FBT002, RUF100  DJL's signature
    """Return `{"inputs": [..]}` of CSV with named columns, or an array of numbers. Raises `ValueError`."""
    text = inputs.get_as_string()
    if not require_headers:
        import numpy as np

        numbers = np.genfromtxt(io.StringIO(text), delimiter=",")
        if np.isnan(numbers).any():
            raise ValueError("the CSV content has values that are not numbers")
        return numbers
    return named_rows(text)


def named_rows(text: str, most: int | None = None) -> dict[str, Any]:
    """Return `{"inputs": [..]}` of CSV: the column `inputs`, or else all columns of each line. Raises `ValueError`.

    `most` is the maximum number of lines to read.
    """
    if not any(header in text.partition("\n")[0].lower() for header in _HEADERS):
        raise ValueError(f"the first line of CSV content must name its columns: {', '.join(_HEADERS)}")
    rows = list(itertools.islice(csv.DictReader(io.StringIO(text)), most))
    return {"inputs": [row["inputs"] for row in rows] if rows and "inputs" in rows[0] else rows}


def encode(outputs: Output, prediction: Any, content_type: str | None, key: str | None = None) -> None:
    """Add a prediction and its `Content-Type` to `outputs`: JSON, CSV, an .npz archive, or else an NDList."""
    kind = content_type or "application/json"
    if "application/json" in kind:
        outputs.add_as_json(prediction, key).add_property("Content-Type", "application/json")
    elif "text/csv" in kind:
        outputs.add(encode_csv(prediction), key).add_property("Content-Type", "text/csv")
    elif "tensor/npz" in kind:
        outputs.add_as_npz(prediction, key).add_property("Content-Type", "tensor/npz")
    else:
        outputs.add_as_numpy(prediction, key).add_property("Content-Type", "tensor/ndlist")


def encode_csv(content: Iterable[Mapping[str, Any]]) -> str:
    """Return one line per dict, after a line with the names."""
    rows = list(content)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
