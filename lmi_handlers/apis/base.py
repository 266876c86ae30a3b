"""The interface between the HTTP layer and the wire dialects."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import ClassVar

import msgspec

from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving.parsed import Parsed


class Payload(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request as received over HTTP.

    `accept` is the `Accept` header. `stream` is true if the client called SageMaker's streaming API. `adapter` comes
    from the header or the argument of the query that `adapter_field` names; the body takes precedence. `context` is what
    the model's input formatter returned for its output formatter. `opaque` is true for a body that only an input formatter
    may read, because it is no JSON object, or exceeds the limits of one.
    """

    data: bytes
    request_id: str
    content_type: str = "application/json"
    accept: str = ""
    stream: bool = False
    adapter: str | None = None
    adapter_field: str = "adapters"
    context: bytes = b""
    opaque: bool = False

    @cached_property
    def fields(self) -> Mapping[str, msgspec.Raw]:
        """The fields of a JSON body, not decoded yet. Texts and `opaque` bodies have none.

        Raises `InvalidJson`, or `InvalidBody` if it is not an object.
        """
        if self.opaque or self.content_type == "text/plain":
            return {}
        return decode_typed(self.data, dict[str, msgspec.Raw])

    def parsed_by(self, dialect: Dialect) -> Parsed:
        """Validate the body. Raises `InvalidRequest`, which names the field, or where else an adapter comes from."""
        parsed = dialect.parse(self)
        if self.adapter is None or any(prompt.adapter != self.adapter for prompt in parsed.request.prompts):
            return parsed
        return msgspec.structs.replace(parsed, alias=partial(self._alias, parsed.alias))

    def _alias(self, in_body: Callable[[str], str], field: str) -> str:
        return self.adapter_field if field == "adapters" else in_body(field)


class Reply(msgspec.Struct, frozen=True):
    """A complete response, such as an error in the dialect's own format."""

    status: int
    body: bytes
    content_type: str = "application/json"


def first_named(accept: str, content_types: Iterable[str]) -> str | None:
    """Return which of `content_types` the header `Accept` names first, or None if it names none of them."""
    places = {content_type: accept.find(content_type) for content_type in content_types}
    named = [content_type for content_type, place in places.items() if place >= 0]
    return min(named, key=places.__getitem__, default=None)


class Dialect(ABC):
    """One wire format. A single object serves all requests, so it keeps no per-request state."""

    error_type: ClassVar[type] = object
    """The type of the JSON that `error` writes."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}
    """Headers sent with every response, including errors."""

    id_headers: tuple[str, ...] = ()
    """Names, besides `x-request-id`, of headers with the request's id. Sent with every response, including errors."""

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest`, which names the field."""

    @abstractmethod
    def error(self, error: LMIError) -> Reply:
        """Render an error that occurs before the first byte of the answer is sent."""

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:  # noqa: ARG002  for overrides
        """Return extra response headers. Called once the answer is complete, or for a stream before it starts."""
        return {}


def dialect_name(dialect: Dialect) -> str:
    """Return a name for people: that of the API, and that of the kind of body if the API has several, as in `openai chat`."""
    api = type(dialect).__module__.removeprefix("lmi_handlers.apis.").partition(".")[0]
    kind = type(dialect).__name__.lstrip("_").removesuffix("Dialect")
    words = re.findall("[A-Z][a-z]*", kind)
    return " ".join(dict.fromkeys([*api.split("_"), *(word.lower() for word in words)]))


def front_end_json(value: object) -> bytes:
    """Encode a document of the front end itself as DJL's does: indented, with a trailing newline."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
