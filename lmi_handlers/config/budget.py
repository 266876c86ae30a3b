"""Limits of a single request, checked before anything is built from its body.

The limits are options. `openapi/document.py` writes the same numbers into the OpenAPI document.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, PayloadTooLarge
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.json_shape import json_shape, outer_names

MAX_NAME_CHARACTERS = 1024
"""Maximum length of names that answers repeat, such as those of models and users."""

MAX_FIELDS = 20_000
"""Names of a body itself, without those of the objects in it. Each becomes an object: that many block others for 12 ms."""

_NAME_BYTES = 5
"""Of a name and its value, such as `"":1,`."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a request. Each is named after its option.

    The checks raise `InvalidRequest` with the field, its value and the limit, or `PayloadTooLarge` for a whole body.
    """

    max_text_bytes: int
    max_json_values: int
    max_json_containers: int
    max_batch_records: int
    max_sequences: int
    max_messages: int
    max_content_parts: int
    max_tools: int
    max_strings: int
    max_string_characters: int
    max_token_ids: int
    max_schema_bytes: int
    min_priority: int
    max_image_bytes: int
    max_audio_bytes: int | None
    max_prompt_logprobs: int

    @classmethod
    def of(cls, properties: ServingProperties) -> Budget:
        """Return the limits that the options set."""
        return cls(**{name: getattr(properties, name) for name in cls.__struct_fields__})

    def check_text(self, data: bytes) -> None:
        """Check the size of a body. Images and sounds in base64 have their own limit."""
        if len(data) <= self.max_text_bytes:
            return
        files = _data_url_bytes(data)
        most = max(self.max_image_bytes, self.max_audio_bytes or 0)
        if files > most // 3 * 4 + _URL_HEADS:
            raise PayloadTooLarge(
                f"the request body has {files} bytes of images and sounds in base64; they may have at most {most} as files "
                "(option.max_image_bytes, option.max_audio_bytes)",
                code="images_too_large",
            )
        size = len(data) - files
        if size > self.max_text_bytes:
            raise PayloadTooLarge(
                f"the request body has {size} bytes besides images and sounds; at most {self.max_text_bytes} are allowed "
                "(option.max_text_bytes)",
                code="text_too_large",
            )

    def check_json(self, data: bytes) -> None:
        """Check a JSON body before it is decoded: its size, and the number of its values."""
        self.check_text(data)
        self.check_shape([data])

    def check_shape(self, texts: Sequence[bytes]) -> None:
        """Check how many values several JSON texts of one body have together."""
        if sum(map(len, texts)) < min(2 * self.max_json_containers, self.max_json_values, _NAME_BYTES * MAX_FIELDS):
            return  # too short to exceed the limits: each container takes two bytes
        containers = values = 0
        for text in texts:
            shape = json_shape(text, enough=self.max_json_values)
            containers += shape.containers
            values += shape.values
            if containers > self.max_json_containers:
                raise PayloadTooLarge(
                    f"the request body has more than {self.max_json_containers} JSON objects and arrays "
                    "(option.max_json_containers)",
                    code="too_many_values",
                )
            if values > self.max_json_values:
                raise PayloadTooLarge(
                    f"the request body has more than {self.max_json_values} JSON values and names "
                    "(option.max_json_values)",
                    code="too_many_values",
                )
            if shape.members > MAX_FIELDS and outer_names(text, enough=MAX_FIELDS) > MAX_FIELDS:
                raise PayloadTooLarge(
                    f"the request body is a JSON object with more than {MAX_FIELDS} names", code="too_many_values"
                )
            give_way()

    def check_lines(self, data: bytes) -> None:
        """Check the number of lines in a JSON-lines body."""
        lines = 0
        for start in range(0, len(data), _CHUNK):
            lines += data.count(b"\n", start, start + _CHUNK)
            if lines > self.max_batch_records:
                raise PayloadTooLarge(
                    f"the request body has more than {self.max_batch_records} lines (option.max_batch_records)",
                    code="too_many_lines",
                )
            give_way()

    def check_fields(self, body: msgspec.Struct, *, prefix: str = "") -> None:
        """Check every list, text and object of a decoded body. `prefix` is the path of `body` within the request."""
        for name, check in _checks_of(type(body)):
            value = getattr(body, name)
            if value is not None:
                check(self, prefix + name, value)

    def check_sequences(self, field: str, prompts: int, samples: int) -> None:
        """Check how many sequences a request asks for."""
        if prompts * samples > self.max_sequences:
            asked = f"{prompts} prompts" if samples == 1 else f"{prompts} x {samples} sequences"
            raise InvalidRequest(
                f"asks for {asked}; at most {self.max_sequences} are allowed (option.max_sequences)", field=field
            )

    def check_repeated(self, field: str, text: str, times: int) -> None:
        """Check a text that is computed several times, once with each of several others."""
        if len(text) * times > self.max_text_bytes:
            raise InvalidRequest(
                f"has {len(text)} characters, for each of {times} texts; at most {self.max_text_bytes} are allowed in all "
                "(option.max_text_bytes)",
                field=field,
            )

    def check_prompt_logprobs(self, tokens: int, alternatives: int) -> None:
        """Check how many log probabilities of prompt tokens an answer would have."""
        values = tokens * (1 + alternatives)
        if values > self.max_prompt_logprobs:
            raise InvalidRequest(
                f"would return {values} log probabilities of {tokens} prompt tokens; at most {self.max_prompt_logprobs} are "
                "allowed (option.max_prompt_logprobs)",
                field="prompt_logprobs",
            )

    def check_prompt_ids(self, tokens: int, *, field: str = "return_token_ids") -> None:
        """Check how many ids of prompt tokens an answer would have, `tokens` for all sequences. `field` asks for them."""
        if tokens > self.max_prompt_logprobs:
            raise InvalidRequest(
                f"would return the ids of {tokens} prompt tokens; at most {self.max_prompt_logprobs} are allowed "
                "(option.max_prompt_logprobs)",
                field=field,
            )

    def check_items(self, field: str, items: Sequence[object]) -> None:
        """Check the number of items in a conversation."""
        _check_count(field, items, self.max_messages, "items", "max_messages")

    def check_parts(self, field: str, parts: Sequence[object]) -> None:
        """Check the number of content parts in a prompt."""
        _check_count(field, parts, self.max_content_parts, "parts", "max_content_parts")

    def keywords(self) -> Mapping[str, Mapping[str, Any]]:
        """Return JSON schema keywords for the fields that `check_fields` checks, by field."""
        text = {"maxLength": self.max_string_characters}
        strings = {"maxItems": self.max_strings, "items": {"type": "string"} | text} | text
        token_ids = {"maxItems": self.max_token_ids, "maxProperties": self.max_token_ids}
        of_kind: Mapping[Check, Mapping[str, Any]] = {
            _check_strings: strings,
            _check_token_ids: token_ids,
            _check_messages: {"maxItems": self.max_messages},
            _check_tools: {"maxItems": self.max_tools},
            _check_schema: {"maxLength": self.max_schema_bytes},
            _check_name: {"maxLength": MAX_NAME_CHARACTERS},
            _check_priority: {"minimum": self.min_priority},
        }
        return {name: of_kind[check] for name, check in _CHECKS.items() if check in of_kind}


Check = Callable[[Budget, str, Any], None]
"""`(budget, field, value)`. Raises `InvalidRequest`."""


def _check_strings(budget: Budget, field: str, value: str | list[str] | bool) -> None:
    if isinstance(value, bool):  # TensorRT-LLM's `stop`
        return
    strings = [value] if isinstance(value, str) else value
    _check_count(field, strings, budget.max_strings, "strings", "max_strings")
    characters = sum(map(len, strings))
    if characters > budget.max_string_characters:
        raise InvalidRequest(
            f"has {characters} characters in all; at most {budget.max_string_characters} are allowed "
            "(option.max_string_characters)",
            field=field,
        )


def _check_token_ids(budget: Budget, field: str, value: list[int] | dict[int, float]) -> None:
    _check_count(field, value, budget.max_token_ids, "token ids", "max_token_ids")


def _check_messages(budget: Budget, field: str, value: str | list[Any]) -> None:
    if isinstance(value, str):  # a single document
        return
    _check_count(field, value, budget.max_messages, "items", "max_messages")
    parts = sum(len(item.content) for item in value if isinstance(getattr(item, "content", None), list))
    if parts > budget.max_content_parts:
        raise InvalidRequest(
            f"has {parts} content parts in all; at most {budget.max_content_parts} are allowed "
            "(option.max_content_parts)",
            field=field,
        )
    budget.check_shape(_call_arguments(value))


def _check_tools(budget: Budget, field: str, value: list[Any]) -> None:
    _check_count(field, value, budget.max_tools, "tools", "max_tools")
    _check_schema(budget, field, value)


def _check_schema(budget: Budget, field: str, value: object) -> None:
    size, unit = (len(value), "characters") if isinstance(value, str) else (len(msgspec.json.encode(value)), "bytes")
    if size > budget.max_schema_bytes:
        raise InvalidRequest(
            f"has {size} {unit}; at most {budget.max_schema_bytes} are allowed (option.max_schema_bytes)", field=field
        )


def _check_nested(budget: Budget, field: str, value: msgspec.Struct) -> None:
    budget.check_fields(value, prefix=f"{field}.")


def _check_name(budget: Budget, field: str, value: str) -> None:  # noqa: ARG001  the signature of `Check`
    if len(value) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"has {len(value)} characters; at most {MAX_NAME_CHARACTERS} are allowed", field=field)


def _check_priority(budget: Budget, field: str, value: int) -> None:
    if value < budget.min_priority:
        raise InvalidRequest(
            f"must be at least {budget.min_priority}, got {value}: the operator decides how urgent a request may be "
            "(option.min_priority)",
            field=field,
        )


def _call_arguments(messages: list[Any]) -> list[bytes]:
    """Return the arguments of all calls in a conversation, also in the older form. Each is a JSON text within the body."""
    calls = [call for message in messages for call in getattr(message, "calls", None) or ()]
    functions = [function for call in calls if isinstance(function := call.get("function"), dict)]
    return [text.encode() for function in functions if isinstance(text := function.get("arguments"), str)]


def _check_count(field: str, value: Any, most: int, noun: str, option: str) -> None:
    if len(value) > most:
        raise InvalidRequest(f"has {len(value)} {noun}; at most {most} are allowed (option.{option})", field=field)


_CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(
        (
            "stop",
            "stop_sequences",
            "bad_words",
            "bad_sequences",
            "completion_bias_exclusion",
            "guided_choice",
            "choice",
            "response_fields",
        ),
        _check_strings,
    ),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "logit_bias"), _check_token_ids),
    **dict.fromkeys(("messages", "documents"), _check_messages),
    **dict.fromkeys(("tools", "functions"), _check_tools),
    "structured_outputs": _check_nested,
    **dict.fromkeys(
        (
            "response_format",
            "grammar",
            "guided_grammar",
            "json",
            "json_schema",
            "guided_json",
            "regex",
            "guided_regex",
            "chat_template_kwargs",
        ),
        _check_schema,
    ),
    "priority": _check_priority,
    **dict.fromkeys(("model", "user", "adapter_id", "output_formatter", "reasoning_effort"), _check_name),
}
"""The check of each field, by the field names of all dialects."""


@functools.cache
def _checks_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, Check], ...]:
    return tuple((name, _CHECKS[name]) for name in kind.__struct_fields__ if name in _CHECKS)


def _data_url_bytes(data: bytes) -> int:
    """Return how many bytes of a JSON body are images and sounds in plain ASCII, which is cheap to decode."""
    total = end = 0
    for start in islice(_data_urls(data), _MAX_DATA_URLS):
        if start < end or data[start - 1 : start] == b"\\":
            continue
        end = data.find(b'"', start + 1)
        if end == -1:
            break
        total += _plain_length(data, start + 1, end)
    return total


def _data_urls(data: bytes) -> Iterator[int]:
    """Yield where the quote before each file is: a `data:` URL, or the base64 alone in Anthropic's or OpenAI's `"data"`."""
    for start in range(0, len(data), _CHUNK):
        for match in _DATA_URL.finditer(data, start, start + _CHUNK + _LONGEST):
            yield match.end() - 1 if match.group().endswith(b'"') else match.start()
        give_way()


def _plain_length(data: bytes, start: int, end: int) -> int:
    r"""Return the length of an ASCII string without escapes except `\/`, which PHP writes. 0 for other strings."""
    slashes = 0
    for place in range(start, end, _CHUNK):
        stop = min(place + _CHUNK, end)
        piece = data[place:stop]
        escapes = piece.count(b"\\")
        if not piece.isascii() or escapes != data.count(b"\\/", place, stop + 1):
            return 0
        slashes += escapes
        give_way()
    return end - start - slashes


_DATA_URL = re.compile(rb'"data:|"data"[ \t\r\n]{0,4}:[ \t\r\n]{0,4}"', re.IGNORECASE)
_LONGEST = len(b'"data":"') + 8  # bytes of a match
_CHUNK = 1 << 18
_MAX_DATA_URLS = 1024  # any further ones count as text
_URL_HEADS = 1 << 16  # bytes allowed for prefixes such as "data:image/png;base64,"
