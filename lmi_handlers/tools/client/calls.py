"""An AWS API call, validated against botocore's service model."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lmi_handlers.core.redaction import REDACTED, is_secret, redacted


class AwsCall(msgspec.Struct, frozen=True):
    """A call with boto3's names: `boto3.client(service).operation(**parameters)`.

    With `until`, it is repeated until the described status has that value. With `file`, that local file is the body.
    """

    service: str
    operation: str
    parameters: Mapping[str, Any]
    until: str | None = None
    file: str | None = None

    @property
    def api_name(self) -> str:
        """The operation by AWS's name, such as "CreateModel"."""
        return "".join(word.title() for word in self.operation.split("_"))

    @property
    def subject(self) -> str:
        """The resource that the call concerns, for messages."""
        names = (*_SUBJECTS, *(name for name in self.parameters if name.endswith("Name")))
        return next((str(self.parameters[name]) for name in names if name in self.parameters), "")


_SUBJECTS = ("InferenceComponentName", "ResourceId", "Key", "EndpointConfigName", "ModelName", "EndpointName")


def as_printed(call: AwsCall) -> dict[str, Any]:
    """Return the call as `--dry-run` prints it: without secrets."""
    printed = {
        "service": call.service,
        "operation": call.operation,
        "parameters": _without_secrets(call.parameters),
        "until": call.until,
        "file": call.file,
    }
    return {name: value for name, value in printed.items() if value is not None}


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if isinstance(value, str) and name not in _NOT_SECRET:
        return REDACTED if is_secret(name, value) else redacted(value)
    return value


_NOT_SECRET = ("Key", "KmsKeyId", "S3Uri", "ArtifactUrl")
"""Parameters whose names look like those of secrets, and URLs that SageMaker accepts without credentials only."""


def mistakes(call: AwsCall) -> list[str]:
    """Return what botocore's description of the service does not allow: types, required fields, bounds, patterns, choices.

    botocore itself checks only the first two and lower bounds before it sends a call.
    """
    from botocore.validate import ParamValidator

    shape = _input_shape(call.service, call.api_name)
    parameters = dict(call.parameters) | ({"Body": b""} if call.file else {})
    report = ParamValidator().validate(parameters, shape)
    if report.has_errors():
        return [f"{call.api_name}: {line}" for line in report.generate_report().splitlines()]
    return [f"{call.api_name}: {problem}" for problem in _beyond(parameters, shape, "")]


@functools.cache
def _input_shape(service: str, operation: str) -> Any:
    from botocore.session import get_session

    return get_session().get_service_model(service).operation_model(operation).input_shape


def _beyond(value: Any, shape: Any, name: str) -> Iterator[str]:
    """Yield the bounds, patterns and choices that a value of the right type violates."""
    if shape.type_name == "structure":
        for key, item in value.items():
            yield from _beyond(item, shape.members[key], f"{name}.{key}".lstrip("."))
        return
    if shape.type_name == "list":
        for number, item in enumerate(value):
            yield from _beyond(item, shape.member, f"{name}[{number}]")
    elif shape.type_name == "map":
        for key, item in value.items():
            yield from _beyond(key, shape.key, f"{name}.{key} (its name)")
            yield from _beyond(item, shape.value, f"{name}.{key}")
    limits = shape.metadata
    size = value if isinstance(value, int | float) else len(value) if isinstance(value, str | list | dict) else None
    if size is not None and "max" in limits and size > float(limits["max"]):
        unit = "" if isinstance(value, int | float) else " characters" if isinstance(value, str) else " entries"
        yield f"{name} must be at most {limits['max']}{unit}, got {size}"
    if isinstance(value, str):
        if limits.get("enum") and value not in limits["enum"]:
            yield f"{name}: {value} is not known to the installed version of boto3{_similar(value, limits['enum'])}"
        elif (pattern := _pattern(limits.get("pattern"))) is not None and not pattern.fullmatch(value):
            yield f"{name}: {redacted(value)!r} does not match AWS's pattern {pattern.pattern}"


def _similar(value: str, choices: list[str]) -> str:
    import difflib

    found = difflib.get_close_matches(value, choices, n=3)
    return f"; did you mean {' or '.join(found)}?" if found else ""


@functools.cache
def _pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile one of AWS's patterns. Returns None for one with syntax that only Java's regular expressions have."""
    try:
        return None if text is None or text == _WRONG_PATTERN else re.compile(text)
    except re.error:
        return None


_WRONG_PATTERN = "(https|s3)://([^/])/?(.*)"
"""Allows only one character for the bucket: a plus is missing."""
