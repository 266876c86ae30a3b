"""The contract between the HTTP edge and a wire dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from formatters.base import Formatter
from lmi_handlers.errors import InvalidRequest, LMIError
from lmi_handlers.request import GenerationRequest


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A request as HTTP delivered it. `stream` is true where SageMaker's streaming API was called; `accept` is the header."""

    data: bytes
    request_id: str
    content_type: str = "application/json"
    accept: str = ""
    stream: bool = False


class Parsed(msgspec.Struct, frozen=True):
    """What a body asks for, how the answer is to look, and what the client calls a field of `SamplingParams`."""

    request: GenerationRequest
    formatter: type[Formatter]
    spelling: Callable[[str], str]


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error in a dialect's own shape, for a response that has not begun."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Dialect(ABC):
    """One wire contract. One object serves every request, so it keeps no state of any of them."""

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest` naming the field."""

    @abstractmethod
    def error(self, error: LMIError) -> ErrorResponse:
        """Render an error that is known before the first byte of the answer."""


def decode_json(data: bytes) -> object:
    """Decode a body strictly. Raises `InvalidRequest` for all that is not one JSON value: NaN, bottomless nesting, ..."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is not valid JSON: it is nested too deeply") from error


def conversion_error(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidRequest:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.seed`") into one that has the field in front."""
    message, _, path = str(error).partition(" - at `$")
    field = (prefix + path.rstrip("`")).lstrip(".")
    return InvalidRequest(message, field=field or None)
