"""`sagemaker_huggingface_inference_toolkit.decoder_encoder`: bodies as transformers' pipelines take and return them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from lmi_handlers.custom_code import content
from lmi_handlers.custom_code.content import CSV, JSON, NPY, ContentError, text
from lmi_handlers.custom_code.encode_decode import encode_csv, named_rows
from lmi_handlers.custom_code.outputs import builtin


def decode(body: str | bytes, content_type: str = JSON) -> Any:
    """Return JSON as it is, an array of .npy, or `{"inputs": value}` of CSV, an image or a sound.

    Raises `ContentError`: 415 for other types, 400 for malformed content.
    """
    if content_type == NPY:
        return content.decode(body, NPY)
    try:
        if content_type == JSON:
            return json.loads(body)
        if content_type == CSV:
            return named_rows(text(body))
        if content_type.startswith("image/"):
            from PIL import Image

            return {"inputs": Image.open(io.BytesIO(bytes(body))).convert("RGB")}  # type: ignore[arg-type]  # bytes
    except (ValueError, OSError) as error:
        raise ContentError(400, f"the body is not valid {content_type}: {error}") from error
    if content_type.startswith("audio/"):
        return {"inputs": bytes(body)}  # type: ignore[arg-type]  # bytes
    raise ContentError(415, f"the content type {content_type} is not supported: use JSON, CSV, .npy, images or sounds")


def encode(prediction: Any, content_type: str = JSON) -> str | bytes:
    """Return JSON, with images in base64, CSV of a list of dicts, or .npy. Raises `ContentError` for other types."""
    if content_type == JSON:
        return json.dumps(
            prediction, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_builtin_or_image
        )
    return encode_csv(prediction) if content_type == CSV else content.encode(prediction, content_type)


def _builtin_or_image(value: Any) -> object:
    """Return what JSON has in place of a value. Raises `TypeError`."""
    if hasattr(value, "tolist"):  # arrays and numbers of numpy, tensors of torch
        return value.tolist()
    if hasattr(value, "save") and hasattr(value, "getpixel"):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return base64.b64encode(file.getvalue()).decode()
    return builtin(value)
