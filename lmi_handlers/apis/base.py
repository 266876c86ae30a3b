"""The interface between the HTTP layer and the wire dialects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

import msgspec

from formatters.base import Formatter
from lmi_handlers.core.errors import InvalidBody, InvalidJson, InvalidRequest, LMIError
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.usage import Usage

T = TypeVar("T")


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A request as received over HTTP.

    `accept` is the `Accept` header. `stream` is true if the client called SageMaker's streaming API. `adapter` comes
    from a header or the query string; the body takes precedence.
    """

    data: bytes
    request_id: str
    content_type: str = "application/json"
    accept: str = ""
    stream: bool = False
    adapter: str | None = None


class TokenLimits(msgspec.Struct, frozen=True):
    """Maximum tokens in a prompt, maximum tokens in a prompt plus its answer, and the size of the vocabulary."""

    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int


class ModelFacts(msgspec.Struct, frozen=True):
    """What dialects need to know about the loaded model, including its public name and the names of its adapters."""

    model_id: str
    adapters: tuple[str, ...]
    chat_template: str
    takes_images: bool = False


LengthCheck = Callable[[GenerationRequest, int, int, TokenLimits], None]
"""`(request, position, tokens, limits)`: raises `InvalidRequest` if the prompt at `position` is too long."""


FormatterFactory = Callable[[GenerationRequest, tuple[int, ...]], Formatter]
"""A formatter class, or a partial of one that already has its options."""


def check_length(request: GenerationRequest, position: int, tokens: int, limits: TokenLimits) -> None:
    """Raise `InvalidRequest` if the prompt is too long or leaves no room for an answer.

    An answer that would not fit in full is not an error: it ends where the room ends.
    """
    field = "inputs" if len(request.prompts) == 1 else f"inputs[{position}]"
    if tokens >= limits.max_total_tokens:
        raise InvalidRequest(
            f"has {tokens} tokens; the model takes {limits.max_total_tokens} in all and one must be left to generate",
            field=field,
        )
    if tokens > limits.max_input_tokens:
        raise InvalidRequest(
            f"has {tokens} tokens; prompts may have {limits.max_input_tokens} (option.max_input_tokens)", field=field
        )


class Parsed(msgspec.Struct, frozen=True):
    """A parsed body: the request, its formatter, and the client's names for the fields of `SamplingParams`.

    `prompts` is set if the prompts are not plain text yet: the text layer turns them into `request.prompts`.
    `prompt_field` is the body field that they come from. `check_length` is called for each prompt once its tokens have
    been counted.
    """

    request: GenerationRequest
    formatter: FormatterFactory
    spelling: Callable[[str], str]
    check_length: LengthCheck = check_length
    prompts: tuple[Prompt, ...] = ()
    prompt_field: str = "inputs"


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error in the dialect's own format, for a response that has not started."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Dialect(ABC):
    """One wire format. A single object serves all requests, so it keeps no per-request state."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}
    """Headers sent with every response, including errors."""

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest`, which names the field."""

    @abstractmethod
    def error(self, error: LMIError) -> ErrorResponse:
        """Render an error that occurs before the first byte of the answer is sent."""

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:  # noqa: ARG002  for overrides
        """Return extra response headers. Called once the answer is complete, or for a stream before it starts."""
        return {}


def decode_json(data: bytes) -> object:
    """Decode a body strictly.

    Raises `InvalidJson` if it is not exactly one JSON value; NaN or very deep nesting is not allowed.
    """
    try:
        return decode_typed(data, object)
    except InvalidBody as error:  # a number out of range
        raise InvalidJson(f"the body is not valid JSON: {error}") from error


def decode_typed(data: bytes | msgspec.Raw, kind: type[T], *, prefix: str = "") -> T:
    """Decode a body, or the part of it at `prefix`, as `kind`. Unknown fields are skipped without using memory.

    Raises `InvalidJson` for invalid JSON, and `InvalidBody` if the JSON does not have that type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise conversion_error(error, prefix=prefix) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidJson("the body is not valid JSON: it is nested too deeply") from error


def unknown_names(data: bytes | msgspec.Raw, kind: type[msgspec.Struct], *, nulls: bool) -> tuple[str, ...]:
    """Return the names in a JSON object that `kind` has no field for.

    With `nulls`, names whose value is null count too.

    Raises `InvalidJson` for invalid JSON, and `InvalidBody` if `data` is not an object.
    """
    fields = decode_typed(data, dict[str, msgspec.Raw])
    unknown = fields.keys() - set(kind.__struct_fields__)
    return tuple(name for name in fields if name in unknown and (nulls or not _is_null(fields[name])))


def _is_null(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes == len(b"null") and bytes(value) == b"null"


def conversion_error(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidBody:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.seed`") into one that starts with the field."""
    message, _, path = str(error).replace(" - at `key` in `$", " as a name - at `$").partition(" - at `$")
    field = (prefix + path.rstrip("`")).lstrip(".")
    return InvalidBody(message, field=field or None)
