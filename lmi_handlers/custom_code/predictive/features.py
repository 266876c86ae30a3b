"""Features in and predictions out, as LMI's `djl_python.sklearn_handler` reads and writes them: JSON and CSV."""

from __future__ import annotations

from typing import Any

from lmi_handlers.custom_code.content import CSV, JSON, ContentError, accepted, encode_csv, encode_json
from lmi_handlers.custom_code.encode_decode import decode, decode_csv
from lmi_handlers.custom_code.inputs import Input


def read_features(data: bytes, content_type: str | None) -> Any:
    """Return an array with one row per example: of the JSON value or its "inputs", of CSV lines without names, or else.

    Raises `ContentError` if that is not possible.
    """
    import numpy as np

    inputs = Input({"content-type": content_type or ""}, [("data", data)])
    try:
        if content_type == CSV:
            return as_rows(decode_csv(inputs, require_headers=False))
        value = decode(inputs, content_type)
        return as_rows(np.array(value["inputs"] if isinstance(value, dict) else value))
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise ContentError(400, f"the body is not valid {content_type or JSON}: {error}") from error


def as_rows(features: Any) -> Any:
    """Return an array of one example as an array with one row, and anything else as it is."""
    return features.reshape(1, -1) if getattr(features, "ndim", None) == 1 else features


def write_predictions(predictions: Any, accept: str) -> tuple[str | bytes, str]:
    """Return CSV, or `{"predictions": ..}`, and its type. Raises `ContentError` if `accept` has neither."""
    kind = next((item for item in accepted(accept) if item in (JSON, CSV)), None)
    if kind is None:
        raise ContentError(406, f"the content type {accept} is not available: accept {JSON} or {CSV}")
    if kind == CSV:
        return encode_csv(predictions).rstrip(), CSV
    return encode_json({"predictions": predictions}), JSON
