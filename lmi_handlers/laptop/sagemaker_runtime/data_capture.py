"""Data Capture: requests and answers as JSON lines in a folder, as SageMaker writes them to S3."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from flask import request

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime.bodies import MAX_BODY, read_body
from lmi_handlers.laptop.sagemaker_runtime.constraints import PREFIX

MAX_BYTES = 10 << 30
"""Bytes of all files in the folder. Where there are more, nothing is captured."""

_LOOK_BYTES = 64 << 20
"""A worker counts what is in the folder each time that it has written so much, since the others write there, too."""

_LOOK_SECONDS = 60.0
"""A worker whose folder is full counts again after this time."""

logger = logging.getLogger(__name__)

_WRITING = threading.Lock()
"""Each web worker has files of its own, and its threads write one line after another."""


class DataCapture:
    """Writes a line for each 2xx answer. Each web worker has a file per hour, below the endpoint and its variant.

    The folder may grow to about `MAX_BYTES`. Only their owner can read the files, because prompts may be private.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker = uuid.uuid4()
        self._room = 0
        """Bytes that may be written before the folder is looked at again."""
        self._full_until = 0.0

    def check(self) -> None:
        """Raise `ConfigError` if the folder cannot be written to."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / f".{self._worker}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"the folder for Data Capture, {self._folder}: {error.strerror}") from error

    def begin(self, endpoint: str) -> CapturedRequest | None:
        """Return the request that Flask is handling, to be written with its answer, or None if the folder is full.

        Raises a `ServiceError`.
        """
        with _WRITING:
            has_room = self._has_room()
        return CapturedRequest(self, endpoint, f"{self._worker}.jsonl") if has_room else None

    def _has_room(self) -> bool:
        if self._room > 0 or (now := time.monotonic()) < self._full_until:
            return self._room > 0
        size = sum(_sizes(self._folder))
        self._room = min(MAX_BYTES - size, _LOOK_BYTES)
        if self._room <= 0:
            self._full_until = now + _LOOK_SECONDS
            logger.warning("Data Capture: %s has %d bytes, so no more is captured", self._folder, size)
        return self._room > 0

    def append(self, name: str, line: bytes) -> None:
        """Append a line to a file of the folder. A failure is logged."""
        file = self._folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with _WRITING, open(file, "ab", buffering=0, opener=_private) as lines:
                self._room -= len(line)
                append_line(lines, line)
        except OSError as error:
            logger.warning("Data Capture: cannot write %s: %s", file, error.strerror)


class CapturedRequest:
    """A request that waits for its answer. It is complete, because an answer outlives Flask's own request."""

    def __init__(self, capture: DataCapture, endpoint: str, file: str) -> None:
        headers = request.headers
        when = datetime.now(timezone.utc)
        variant = headers.get(PREFIX + "Target-Variant", "AllTraffic")
        self._capture = capture
        self._file = f"{endpoint}/{variant}/{when:%Y/%m/%d/%H}/{file}"
        self._input = _data(read_body(), headers.get("Content-Type", "application/json"), "INPUT")
        attributes = headers.get(PREFIX + "Custom-Attributes")
        metadata = {
            "eventId": str(uuid.uuid4()),
            "customAttributes": None if attributes is None else [attributes],
            "inferenceId": headers.get(PREFIX + "Inference-Id"),
            "inferenceTime": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        self._metadata = {name: value for name, value in metadata.items() if value is not None}

    def write(self, content_type: str, answer: bytes) -> None:
        """Write the request and its answer, or nothing of them. A failure is logged."""
        captured = {"endpointInput": self._input, "endpointOutput": _data(answer, content_type, "OUTPUT")}
        record = {"captureData": captured, "eventMetadata": self._metadata, "eventVersion": "0"}
        self._capture.append(self._file, json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n")

    def observed(self, chunks: Iterator[bytes], content_type: str) -> Iterator[bytes]:
        """Yield a streamed answer, and write it when it is complete and not longer than a request may be."""
        parts, size = [], 0
        for chunk in chunks:
            size += len(chunk)
            if size <= MAX_BODY:
                parts.append(chunk)
            yield chunk
        if size <= MAX_BODY:
            self.write(content_type, b"".join(parts))


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the sizes of the files in a folder from which others may be moving some."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(parent, name).lstat().st_size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def append_line(file: io.FileIO, line: bytes) -> None:
    """Write a line. What a full disk has taken of it is removed, because the next line would go on there."""
    end = file.seek(0, io.SEEK_END)
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        file.truncate(end)
        raise


def _data(data: bytes, content_type: str, mode: str) -> dict[str, str]:
    """Return a body as SageMaker captures it: JSON and CSV as they are, everything else in BASE64."""
    kind = content_type.partition(";")[0].strip().lower()
    encoding = {"application/json": "JSON", "text/csv": "CSV"}.get(kind, "BASE64")
    try:
        text = base64.b64encode(data).decode() if encoding == "BASE64" else data.decode()
    except UnicodeDecodeError:
        encoding, text = "BASE64", base64.b64encode(data).decode()
    return {"observedContentType": content_type, "mode": mode, "data": text, "encoding": encoding}
