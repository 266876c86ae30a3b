"""The contract between the HTTP edge and a wire dialect."""

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
    """A request as HTTP delivered it. `stream` is true where SageMaker's streaming API was called; `accept` is the header.

    `adapter` is the one that a header or the query names; what the body says is stronger.
    """

    data: bytes
    request_id: str
    content_type: str = "application/json"
    accept: str = ""
    stream: bool = False
    adapter: str | None = None


class TokenLimits(msgspec.Struct, frozen=True):
    """Most tokens of a prompt, and of a prompt and its answer together; and how many different ones the model has."""

    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int


class ModelFacts(msgspec.Struct, frozen=True):
    """What a dialect may want to know of the model that has loaded: its public name, its adapters' and its chat template."""

    model_id: str
    adapters: tuple[str, ...]
    chat_template: str
    takes_images: bool = False


LengthCheck = Callable[[GenerationRequest, int, int, TokenLimits], None]
"""`(request, position, tokens, limits)`: raises `InvalidRequest` where prompt `position` of so many tokens is too long."""


FormatterFactory = Callable[[GenerationRequest, tuple[int, ...]], Formatter]
"""A formatter's class, or one that knows more of how the answer is to look; called as a class is."""


def check_length(request: GenerationRequest, position: int, tokens: int, limits: TokenLimits) -> None:
    """Refuse a prompt that leaves no room for an answer, which is otherwise as long as fits. Raises `InvalidRequest`."""
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
    """What a body asks for, how the answer is to look, and what the client calls a field of `SamplingParams`.

    `prompts` are what the text layer makes `request.prompts` of, where these are not texts already; `prompt_field` is where
    the body has them. `check_length` is asked for each prompt once its tokens are counted.
    """

    request: GenerationRequest
    formatter: FormatterFactory
    spelling: Callable[[str], str]
    check_length: LengthCheck = check_length
    prompts: tuple[Prompt, ...] = ()
    prompt_field: str = "inputs"


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error in a dialect's own shape, for a response that has not begun."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Dialect(ABC):
    """One wire contract. One object serves every request, so it keeps no state of any of them."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}
    """Response headers that go with every response, errors included."""

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest` naming the field."""

    @abstractmethod
    def error(self, error: LMIError) -> ErrorResponse:
        """Render an error that is known before the first byte of the answer."""

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:  # noqa: ARG002  for those that have some
        """Return further headers of an answer: of a whole one once it is complete, of a stream when it begins."""
        return {}


def decode_json(data: bytes) -> object:
    """Decode a body strictly. Raises `InvalidJson` for all that is not one JSON value: NaN, bottomless nesting, ..."""
    try:
        return decode_typed(data, object)
    except InvalidBody as error:  # a number out of range
        raise InvalidJson(f"the body is not valid JSON: {error}") from error


def decode_typed(data: bytes | msgspec.Raw, kind: type[T], *, prefix: str = "") -> T:
    """Decode a body, or the part of it at `prefix`, as `kind`. What `kind` has no field for is skipped and takes no memory.

    Raises `InvalidJson`, or `InvalidBody` where the JSON is not of that type.
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
    """Return the names in an object that `kind` has no field for; with `nulls`, also those whose value is null.

    Raises `InvalidJson`, or `InvalidBody` where `data` is not an object.
    """
    fields = decode_typed(data, dict[str, msgspec.Raw])
    unknown = fields.keys() - set(kind.__struct_fields__)
    return tuple(name for name in fields if name in unknown and (nulls or not _is_null(fields[name])))


def _is_null(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes == len(b"null") and bytes(value) == b"null"


def conversion_error(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidBody:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.seed`") into one that has the field in front."""
    message, _, path = str(error).replace(" - at `key` in `$", " as a name - at `$").partition(" - at `$")
    field = (prefix + path.rstrip("`")).lstrip(".")
    return InvalidBody(message, field=field or None)
