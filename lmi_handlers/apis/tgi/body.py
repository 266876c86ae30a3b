"""TGI's request body, what it may hold, and how it reads as `SamplingParams`.

Source: the text-generation-inference 3.3 router's OpenAPI document and its validation, whose order and messages are kept.
Every check here is one that needs no model; `check_length` is for when the prompt's tokens are counted.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, TypeVar

import msgspec

from formatters.tgi import to_float32
from lmi_handlers.apis.base import Payload, TokenLimits, conversion_error, decode_json
from lmi_handlers.apis.structured_outputs import Grammar
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidBody, InvalidJson, InvalidRequest
from lmi_handlers.core.json_shape import count_members, json_shape
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams

Unsigned = Annotated[int, msgspec.Meta(ge=0)]
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Signed32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_SEARCHED = 1 << 20
"""Bytes of a body up to which an error says which field is there twice: finding it holds the event loop."""

_COUNTED_NEW_TOKENS = 1024
"""Of `max_new_tokens` no more are held against the model's length: whoever asks for more gets what fits."""


class TgiParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The `parameters` object. Where None is the default, null means absent; anywhere else it is an error, as in TGI."""

    best_of: Unsigned | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: Signed32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: Unsigned32 | None = None
    return_full_text: bool | None = None
    stop: list[str] = []
    stop_sequences: list[str] | None = None
    truncate: Unsigned | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: Unsigned | None = None
    top_n_tokens: Unsigned32 | None = None
    grammar: Grammar | None = None
    adapter_id: str | None = None

    @property
    def sampling(self) -> bool:
        """Whether anything here speaks of sampling, which is what `best_of` needs."""
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return self.do_sample or any(value is not None for value in given)

    @property
    def stop_strings(self) -> list[str]:
        """`stop`, else what it was called when LMI's schema was made of TGI's."""
        return self.stop or self.stop_sequences or []

    def sampling_params(self, *, stream: bool) -> SamplingParams:
        """Translate. Raises `InvalidRequest` with TGI's name of the field.

        A temperature of 1 alone does not sample. Where the answer is to tell the seed, one is chosen if there is none.
        """
        samples = self.do_sample or (self.temperature or 1.0) != 1.0
        samples = samples or any(value is not None for value in (self.top_k, self.top_p, self.typical_p))
        seed = self.seed
        if seed is None and (self.details or self.decoder_input_details):
            seed = secrets.randbits(64)
        best_of, top = max(self.best_of or 1, 1), self.top_n_tokens or 0
        needs_logprobs = stream or self.details or self.decoder_input_details or best_of > 1
        values: dict[str, object] = {
            "n": best_of,
            "max_tokens": self.max_new_tokens,
            "temperature": (self.temperature or 1.0) if samples else 0.0,
            "seed": seed if samples else None,
            "stop": tuple(self.stop_strings),
            "include_stop_str_in_output": True,
            "logprobs": top if needs_logprobs else None,
            "prompt_logprobs": 0 if self.decoder_input_details else None,
        }
        for name in _SAME_NAME:
            values[name] = getattr(self, name)
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        try:
            if self.grammar is not None:
                given["structured_outputs"] = self.grammar.structured_outputs()
            return SamplingParams(**given)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=error.field and spelling(error.field)) from error


_SAME_NAME = ("top_p", "top_k", "typical_p", "repetition_penalty", "frequency_penalty", "watermark")
_SPELLINGS = {
    "n": "best_of",
    "max_tokens": "max_new_tokens",
    "logprobs": "top_n_tokens",
    "prompt_logprobs": "decoder_input_details",
    "structured_outputs": "grammar",
    "adapters": "adapter_id",
}


def spelling(field: str) -> str:
    """Where in the body a client sets what `SamplingParams` calls `field`."""
    return f"parameters.{_SPELLINGS.get(field, field)}"


class TgiBody(msgspec.Struct, frozen=True):
    """The body of `/generate` and `/generate_stream`. Without `parameters` it samples, with them it need not."""

    inputs: str
    parameters: TgiParameters = TgiParameters(do_sample=True)


class TokenizeBody(TgiBody, frozen=True):
    """The body of `/tokenize`, which reads no `parameters`. TGI's first document has `add_special_tokens`."""

    add_special_tokens: bool = True


class TgiCompatBody(TgiBody, frozen=True):
    """The body of `/` and `/invocations`, where `stream` counts."""

    stream: bool | msgspec.UnsetType = msgspec.UNSET


Body = TypeVar("Body", bound=TgiBody)


def decode_body(payload: Payload, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """Return the body, and the names in it that mean nothing here. Raises `InvalidJson` or `InvalidBody`."""
    return convert_body(read_body(payload), kind)


def read_body(payload: Payload) -> object:
    """Return the body's one JSON value. Raises `InvalidJson`, or `InvalidBody` where a name occurs twice.

    `text/plain`, which only `/invocations` lets through, is a prompt as it is.
    """
    if payload.content_type == "text/plain":
        try:
            return {"inputs": payload.data.decode()}
        except UnicodeDecodeError as error:
            raise InvalidJson(f"the body is not UTF-8: {error}") from error
    value = decode_json(payload.data)
    _refuse_duplicates(payload.data, value)
    return value


def convert_body(value: object, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """Return what `read_body` has read as a body, and the names in it that mean nothing here. Raises `InvalidBody`."""
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise conversion_error(error) from error
    seed = body.parameters.seed
    if seed is not None and seed >= 2**64:  # a bound that msgspec cannot hold
        raise InvalidBody("Expected `int` < 2**64", field="parameters.seed")
    return body, _ignored(value, kind.__struct_fields__)


def _ignored(body: object, known: tuple[str, ...]) -> tuple[str, ...]:
    ignored: list[str] = []
    if isinstance(body, dict):
        ignored += [name for name in body if name not in known]
        ignored += [name for name in body.get("parameters", {}) if name not in TgiParameters.__struct_fields__]
    return tuple(ignored)


def _refuse_duplicates(data: bytes, value: object) -> None:
    """Two values for one name: a proxy in between may have looked at the other one. Raises `InvalidBody`.

    `value` is what `data` decodes to, in which of two such members one is missing.
    """
    if json_shape(data).members == count_members(value):
        return
    if len(data) > _SEARCHED:
        raise InvalidBody("duplicate field")

    def unique(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidBody(f"duplicate field `{name[:100]}`")
            seen.add(name)

    try:
        json.loads(data.decode(), object_pairs_hook=unique, parse_int=len, parse_float=len)
    except RecursionError as error:
        raise InvalidJson("the body is not valid JSON: it is nested too deeply") from error


def check_body(body: TgiBody, properties: ServingProperties, *, stream: bool) -> None:
    """Refuse what TGI refuses before it tokenises, with the first of its messages that applies. Raises `InvalidRequest`."""
    parameters = body.parameters
    best_of = 1 if parameters.best_of is None else parameters.best_of
    if stream and best_of != 1:
        raise InvalidRequest("`best_of` != 1 is not supported when streaming tokens")
    if stream and parameters.decoder_input_details:
        raise InvalidRequest("`decoder_input_details` == true is not supported when streaming tokens")
    if best_of > 1 and properties.max_best_of == 1:
        raise InvalidRequest("`best_of` != 1 is not allowed for this endpoint")
    if best_of > properties.max_best_of:
        raise InvalidRequest(f"`best_of` must be > 0 and <= {properties.max_best_of}. Given: {best_of}")
    if best_of > 1 and not parameters.sampling:
        raise InvalidRequest("you must use sampling when `best_of` is > 1")
    _check_numbers(parameters)
    stops = len(parameters.stop_strings)
    if stops > properties.max_stop_sequences:
        raise InvalidRequest(f"`stop` supports up to {properties.max_stop_sequences} stop sequences. Given: {stops}")
    if best_of > 1 and parameters.seed is not None:
        raise InvalidRequest("`seed` must not be set when `best_of` > 1")
    top_n_tokens = parameters.top_n_tokens or 0
    if top_n_tokens > properties.max_top_n_tokens:
        raise InvalidRequest(f"`top_n_tokens` must be >= 0 and <= {properties.max_top_n_tokens}. Given: {top_n_tokens}")
    if not body.inputs:
        raise InvalidRequest("`inputs` cannot be empty")


def _check_numbers(parameters: TgiParameters) -> None:
    for name in ("temperature", "repetition_penalty"):
        if _seen(getattr(parameters, name), 1.0) <= 0:
            raise InvalidRequest(f"`{name}` must be strictly positive")
    if not -2 <= _seen(parameters.frequency_penalty, 0.0) <= 2:
        raise InvalidRequest("`frequency_penalty` must be >= -2.0 and <= 2.0")
    for name in ("top_p", "typical_p"):
        if not 0 < _seen(getattr(parameters, name), 0.5) < 1:
            raise InvalidRequest(f"`{name}` must be > 0.0 and < 1.0")
    if parameters.top_k is not None and parameters.top_k <= 0:
        raise InvalidRequest("`top_k` must be strictly positive")
    if parameters.max_new_tokens == 0:
        raise InvalidRequest("`max_new_tokens` must be strictly positive")


def _seen(value: float | None, default: float) -> float:
    """What TGI sees of a number: 0.99999999 is 1 to it."""
    return to_float32(default if value is None else value)


def check_length(request: GenerationRequest, position: int, tokens: int, limits: TokenLimits) -> None:  # noqa: ARG001  one prompt
    """Refuse a prompt that the model has no room for, in TGI's words and order. Raises `InvalidRequest`."""
    most, total = limits.max_input_tokens, limits.max_total_tokens
    if request.truncate is not None and not 0 < request.truncate <= most:
        raise InvalidRequest(f"`truncate` must be strictly positive and less than {most}. Given: {request.truncate}")
    asked = request.sampling_params.max_tokens
    new = min(max(total - tokens, 0) if asked is None else asked, _COUNTED_NEW_TOKENS)
    if tokens + new > total:
        raise InvalidRequest(
            f"`inputs` tokens + `max_new_tokens` must be <= {total}. "
            f"Given: {tokens} `inputs` tokens and {new} `max_new_tokens`"
        )
    if tokens > most:
        raise InvalidRequest(f"`inputs` must have less than {most} tokens. Given: {tokens}")
