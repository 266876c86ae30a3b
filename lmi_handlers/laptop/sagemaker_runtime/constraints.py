"""AWS's rules for names and headers, and its messages for values that break them.

Source: botocore's service model of sagemaker-runtime. A test compares the headers and lengths with the installed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from werkzeug.datastructures import Headers

from lmi_handlers.laptop.sagemaker_runtime.errors import validation_error

PREFIX = "X-Amzn-SageMaker-"


class Constraint(msgspec.Struct, frozen=True):
    """AWS's rule for a header. `member` is its name in the API. A `sensitive` value is not quoted in errors."""

    header: str
    member: str
    max_length: int
    pattern: str
    sensitive: bool = False

    def check(self, value: str) -> None:
        """Raise a `ServiceError`, a 400 `ValidationError`, if AWS would refuse the value."""
        if len(value) > self.max_length:
            demand = f"Member must have length less than or equal to {self.max_length}"
        elif re.fullmatch(self.pattern, value) is None:
            demand = f"Member must satisfy regular expression pattern: {self.pattern}"
        else:
            return
        raise _broken(self.member, "" if self.sensitive else f" '{value[:1024]}'", demand)


class Range(msgspec.Struct, frozen=True):
    """AWS's rule for a header with a number of seconds."""

    header: str
    member: str
    low: int
    high: int

    def seconds(self, headers: Headers, default: int) -> int:
        """Return the header's value. Raises a `ServiceError`, a 400 `ValidationError`."""
        text = headers.get(self.header)
        if text is None:
            return default
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            raise _broken(self.member, f" '{text[:64]}'", "Member must be an integer")
        value = int(text)
        if value < self.low:
            raise _broken(self.member, f" '{value}'", f"Member must have value greater than or equal to {self.low}")
        if value > self.high:
            raise _broken(self.member, f" '{value}'", f"Member must have value less than or equal to {self.high}")
        return value


def _broken(member: str, shown: str, demand: str) -> Exception:
    place = f"Value{shown} at '{member}'"
    return validation_error(f"1 validation error detected: {place} failed to satisfy constraint: {demand}")


_ASCII = r"[\x00-\x7f]*"
_PRINTABLE = r"[!-~][ -~]*"
_NAME = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"

ENDPOINT_NAME = Constraint("", "endpointName", 63, _NAME)
"""For the name in the path."""

COMPONENT = Constraint(PREFIX + "Inference-Component", "inferenceComponentName", 63, _NAME)

_CUSTOM_ATTRIBUTES = Constraint(PREFIX + "Custom-Attributes", "customAttributes", 1024, _ASCII, sensitive=True)
_INFERENCE_ID = Constraint(PREFIX + "Inference-Id", "inferenceId", 64, _PRINTABLE)
_COMMON = (
    COMPONENT,
    _CUSTOM_ATTRIBUTES,
    _INFERENCE_ID,
    Constraint(PREFIX + "Target-Variant", "targetVariant", 63, _NAME),
    Constraint(PREFIX + "Target-Container-Hostname", "targetContainerHostname", 63, _NAME),
    Constraint(PREFIX + "Prefix-Aware-Id", "prefixAwareId", 64, _PRINTABLE),
    Constraint("Content-Type", "contentType", 1024, _ASCII),
)
INVOKE = (
    *_COMMON,
    Constraint("Accept", "accept", 1024, _ASCII),
    Constraint(PREFIX + "Session-Id", "sessionId", 256, f"NEW_SESSION|{_NAME}"),
    Constraint(PREFIX + "Target-Model", "targetModel", 1024, _PRINTABLE),
    Constraint(PREFIX + "Enable-Explanations", "enableExplanations", 64, r".+"),
)
INVOKE_STREAM = (
    *_COMMON,
    Constraint(PREFIX + "Accept", "accept", 1024, _ASCII),
    Constraint(PREFIX + "Session-Id", "sessionId", 256, _NAME),
)
INVOKE_ASYNC = (
    _CUSTOM_ATTRIBUTES,
    _INFERENCE_ID,
    Constraint(PREFIX + "Content-Type", "contentType", 1024, _ASCII),
    Constraint(PREFIX + "Accept", "accept", 1024, _ASCII),
    Constraint(PREFIX + "InputLocation", "inputLocation", 1024, r"(https|s3)://([^/]+)/?(.*)"),
    Constraint(PREFIX + "S3OutputPathExtension", "s3OutputPathExtension", 512, r"(?!s3:|https:)[a-zA-Z0-9!_.*'()/-]+"),
    Constraint(PREFIX + "Filename", "filename", 32, r"(?!.*\..*\.)[a-zA-Z0-9][a-zA-Z0-9-_\.]*"),
)
REQUEST_TTL = Range(PREFIX + "RequestTTLSeconds", "requestTTLSeconds", 60, 21600)
INVOCATION_TIMEOUT = Range(PREFIX + "InvocationTimeoutSeconds", "invocationTimeoutSeconds", 1, 3600)


def check_headers(headers: Headers, constraints: Iterable[Constraint]) -> None:
    """Refuse headers that AWS would refuse. Raises a `ServiceError`, a 400 `ValidationError`."""
    for constraint in constraints:
        value = headers.get(constraint.header)
        if value is not None:
            constraint.check(value)
