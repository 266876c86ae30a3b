"""Records of SageMaker's Data Capture."""

from __future__ import annotations

import base64
import json


def capture_record(body: bytes, answer: bytes | None, answer_type: str, *, when: str = "2026-11-27T09:00:00Z") -> bytes:
    """Return the line for a request and its answer. JSON is captured as it is, and everything else in BASE64."""
    captured = {"endpointInput": _data(body, "application/json", "INPUT")}
    if answer is not None:
        captured["endpointOutput"] = _data(answer, answer_type, "OUTPUT")
    metadata = {
        "eventId": "4651a1bf-4b00-4248-a309-4a18b11e4277",
        "customAttributes": ["s3cret"],
        "inferenceTime": when,
    }
    record = {"captureData": captured, "eventMetadata": metadata, "eventVersion": "0"}
    return json.dumps(record).encode() + b"\n"


def _data(data: bytes, content_type: str, mode: str) -> dict[str, str]:
    as_it_is = content_type == "application/json"
    text = data.decode() if as_it_is else base64.b64encode(data).decode()
    encoding = "JSON" if as_it_is else "BASE64"
    return {"observedContentType": content_type, "mode": mode, "data": text, "encoding": encoding}
