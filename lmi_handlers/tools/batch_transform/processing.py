"""`DataProcessing`: which part of a record the model gets, and which part of record and output is kept.

Source: "Associate Prediction Results with Input Records" in SageMaker's guide.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from lmi_handlers.core.errors import LMIError
from lmi_handlers.tools.batch_transform.settings import CSV, Settings

INPUT, OUTPUT = "SageMakerInput", "SageMakerOutput"
"""The keys of a joined object for the output, and for an input that is no object itself."""


class BadRecord(LMIError):
    """The record, or the output for it, is not what the settings say."""


class DataProcessor:
    """Applies the filters and joins. Rows of CSV are lists of texts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_csv = settings.media_type == CSV

    def request(self, record: bytes) -> bytes:
        """Return what the model gets. Raises `BadRecord`."""
        path = self._settings.input_filter
        if path is None:
            return record
        value = self._decode(record, "the record")
        try:
            return self._encode(path.select(value)) + b"\n"
        except LookupError as error:
            raise BadRecord(f"--input-filter selects nothing of the record: {_cause(error)}") from None

    def output(self, record: bytes, answer: bytes) -> bytes:
        """Return what is kept of a record and its output, one line without its end. Raises `BadRecord`."""
        settings = self._settings
        if not settings.join and settings.output_filter is None:
            return answer
        value = self._decode(answer, "the output")
        if settings.join:
            value = self._joined(self._decode(record, "the record"), value)
        if settings.output_filter is not None:
            try:
                value = settings.output_filter.select(value)
            except LookupError as error:
                raise BadRecord(f"--output-filter selects nothing of the output: {_cause(error)}") from None
        return self._encode(value)

    def failure(self, record: bytes | None, error: bytes) -> bytes:
        """Return what is written for a record that has failed, in the place of its output. It is not filtered."""
        if not self._settings.join or record is None:
            return error
        try:
            return self._with_error(self._decode(record, "the record"), error)
        except BadRecord:
            return self._with_error(record.decode(errors="replace").strip(), error)

    def _with_error(self, value: Any, error: bytes) -> bytes:
        if self._is_csv:
            return self._encode([*(value if isinstance(value, list) else [value]), error.decode(errors="replace")])
        return self._encode(self._joined(value, msgspec.Raw(error)))

    def _joined(self, value: Any, output: Any) -> Any:
        if self._is_csv:
            return [*value, *output]
        return {**value, OUTPUT: output} if isinstance(value, dict) else {INPUT: value, OUTPUT: output}

    def _decode(self, data: bytes, what: str) -> Any:
        try:
            if self._is_csv:
                return next(csv.reader([data.decode().strip("\r\n")], strict=True), [])
            return msgspec.json.decode(data)
        except RecursionError:
            raise BadRecord(f"{what} is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError, csv.Error) as error:
            raise BadRecord(f"{what} is not {'CSV' if self._is_csv else 'JSON'}: {error}") from None

    def _encode(self, value: Any) -> bytes:
        if not self._is_csv:
            try:
                return msgspec.json.encode(value)
            except RecursionError:
                raise BadRecord("the record and its output are nested too deeply") from None
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow(value if isinstance(value, list) else [value])
        return row.getvalue().encode()


def _cause(error: LookupError) -> str:
    return f"there is no field {error}" if isinstance(error, KeyError) else str(error)
