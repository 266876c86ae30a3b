"""Failures of a request: exceptions, and the error documents of our APIs."""

from __future__ import annotations

import msgspec

from lmi_handlers.tools.client.json_bytes import json_bytes

_ERROR_FIELDS = {"error", "error_type", "code", "message", "type"}
"""Fields of an error document, in all APIs of this server."""


class CallRefused(Exception):
    """AWS or a server refused a call, or could not be reached. `code` is AWS's name of the error, an HTTP status, or empty.

    `status` is that of the model's answer behind an error of AWS, if AWS passes it on.
    """

    def __init__(self, message: str, *, code: str = "", status: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self._status = status

    @property
    def is_missing(self) -> bool:
        """The resource does not exist. SageMaker has no error code for that."""
        return self.code in _MISSING or (self.code == "ValidationException" and "could not find" in str(self).lower())

    @property
    def is_late(self) -> bool:
        """A time limit of the model's server has passed before it answered."""
        return "504" in (self.code, str(self._status))

    @property
    def is_duplicate(self) -> bool:
        return self.code == "ValidationException" and "already exist" in str(self).lower()


_MISSING = ("ResourceNotFound", "ResourceNotFoundException", "ObjectNotFoundException", "NoSuchBucket")


class AnswerFailed(Exception):
    """The answer says that generation failed. The text is the cause."""


class AnswerTooLong(AnswerFailed):
    """A document of the answer has more bytes than are read of one."""


def is_error(line: bytes) -> bool:
    """Tell whether an answer is an error document, such as a line for a record that has failed."""
    return bool(_error_fields(line))


def code_of(line: bytes) -> int | None:
    """Return the status in an error document, if there is one: `code`, or in OpenAI's `error.code`."""
    fields = _error_fields(line)
    try:
        code = msgspec.json.decode(fields.get("code") or msgspec.json.decode(fields["error"], type=_OpenAIError).code)
    except (LookupError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return code if isinstance(code, int) else None


def error_document(code: int, cause: str) -> bytes:
    """Return an error document as LMI writes it."""
    return json_bytes({"error": cause, "code": code})


class _OpenAIError(msgspec.Struct):
    code: msgspec.Raw


def _error_fields(line: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of an error document, or of anything else none."""
    if not line.startswith(b"{") or b'"error"' not in line:
        return {}
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return fields if fields.keys() <= _ERROR_FIELDS else {}
