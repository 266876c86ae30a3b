"""TGI's request body: its fields, its validation and its translation to `SamplingParams`.

Source: the OpenAPI document and the validation of the text-generation-inference 3.3 router. Checks run in the same
order as there, with the same messages. None of them needs a model except `check_length`, which runs once the prompt's
tokens are counted.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, TypeVar

import msgspec

from formatters.tgi.float32 import to_float32
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_json
from lmi_handlers.apis.parameters import Affects, Param, client_field, sampling_params
from lmi_handlers.apis.structured_outputs import CONSTRAINT, Grammar
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.conversion import conversion_error
from lmi_handlers.core.errors import InvalidBody, InvalidJson, InvalidRequest, aliased
from lmi_handlers.core.json_shape import count_members, json_shape
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams

Unsigned = Annotated[int, msgspec.Meta(ge=0)]
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Signed32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_SEARCHED = 1 << 20
"""Maximum size in bytes of a body that is searched for the name of a duplicate field.

The search blocks the event loop.
"""

_COUNTED_NEW_TOKENS = 1024
"""Only this much of `max_new_tokens` must fit in the model's context.

A larger request is accepted and gets what fits.
"""


class TgiParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The `parameters` object.

    For a field whose default is null, null means absent; for other fields it is an error, as in TGI.
    """

    best_of: Annotated[Unsigned, Param("n")] | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: Signed32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: Annotated[Unsigned32, Param("max_tokens")] | None = None
    return_full_text: bool | None = None
    stop: list[str] = []
    stop_sequences: Annotated[list[str], Param("stop")] | None = None
    truncate: Unsigned | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: Annotated[bool, Affects("prompt_logprobs")] = False
    seed: Unsigned | None = None
    top_n_tokens: Annotated[Unsigned32, Param("logprobs")] | None = None
    grammar: Annotated[Grammar | None, CONSTRAINT] = None
    adapter_id: Annotated[str, Affects("adapters")] | None = None
    cache_salt: str | None = None

    @property
    def sampling(self) -> bool:
        """True if any sampling parameter is set; `best_of` requires one."""
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return self.do_sample or any(value is not None for value in given)

    @property
    def stop_strings(self) -> list[str]:
        """`stop`, or its older name `stop_sequences`, which LMI's schema took from TGI."""
        return self.stop or self.stop_sequences or []

    def sampling_params(self, *, stream: bool) -> SamplingParams:
        """Translate. Raises `InvalidRequest` with TGI's name for the field.

        A temperature of 1 does not turn sampling on by itself. If the answer includes the seed and none is given, one
        is chosen.
        """
        samples = self.do_sample or (self.temperature or 1.0) != 1.0
        samples = samples or any(value is not None for value in (self.top_k, self.top_p, self.typical_p))
        seed = self.seed
        if seed is None and (self.details or self.decoder_input_details):
            seed = secrets.randbits(64)
        best_of, top = max(self.best_of or 1, 1), self.top_n_tokens or 0
        needs_logprobs = stream or self.details or self.decoder_input_details or best_of > 1
        computed: dict[str, object] = {
            "n": best_of,
            "temperature": (self.temperature or 1.0) if samples else 0.0,
            "seed": seed if samples else None,
            "stop": tuple(self.stop_strings),
            "include_stop_str_in_output": True,
            "logprobs": top if needs_logprobs else None,
            "prompt_logprobs": 0 if self.decoder_input_details else None,
        }
        with aliased(self.alias):
            computed["structured_outputs"] = None if self.grammar is None else self.grammar.structured_outputs()
            return sampling_params(self, {}, computed)

    def alias(self, field: str) -> str:
        """Return TGI's name for the field of `SamplingParams`, with its path in the body."""
        return f"parameters.{client_field(self, field)}"


class TgiBody(msgspec.Struct, frozen=True):
    """The body of `/generate` and `/generate_stream`. `do_sample` defaults to true if there are no `parameters`."""

    inputs: str
    parameters: TgiParameters = TgiParameters(do_sample=True)


class TokenizeBody(TgiBody, frozen=True):
    """The body of `/tokenize`. `parameters` is ignored.

    `add_special_tokens` comes from the first version of TGI's API.
    """

    add_special_tokens: bool = True


class TgiCompatBody(TgiBody, frozen=True):
    """The body of `/` and `/invocations`. `stream` chooses between a stream and a single document."""

    stream: bool | msgspec.UnsetType = msgspec.UNSET


Body = TypeVar("Body", bound=TgiBody)


def decode_body(payload: Payload, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """Return the body and the names of its ignored fields. Raises `InvalidJson` or `InvalidBody`."""
    return convert_body(read_body(payload), kind)


def read_body(payload: Payload) -> object:
    """Decode the body as JSON. Raises `InvalidJson`, or `InvalidBody` for duplicate fields.

    A `text/plain` body is the prompt itself. Only `/invocations` accepts that content type.
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
    """Convert the result of `read_body`. Returns the body and the names of its ignored fields. Raises `InvalidBody`."""
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise conversion_error(error, kind) from error
    seed = body.parameters.seed
    if seed is not None and seed >= 2**64:  # too large a bound for msgspec
        raise InvalidBody("Expected `int` < 2**64", field="parameters.seed")
    return body, _ignored(value, kind.__struct_fields__)


def _ignored(body: object, known: tuple[str, ...]) -> tuple[str, ...]:
    ignored: list[str] = []
    if isinstance(body, dict):
        ignored += [name for name in body if name not in known]
        ignored += [name for name in body.get("parameters", {}) if name not in TgiParameters.__struct_fields__]
    return tuple(ignored)


def _refuse_duplicates(data: bytes, value: object) -> None:
    """Raise `InvalidBody` for duplicate fields: a proxy on the way may have checked the other value.

    `value` is the decoded `data`. It keeps only one of two duplicates, so it has fewer members than `data`.
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
    """Run the checks that TGI runs before it tokenises, in its order. Raises `InvalidRequest` with TGI's message."""
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
    """Round to the 32-bit floats that TGI uses: 0.99999999 becomes 1."""
    return to_float32(default if value is None else value)


def check_length(request: GenerationRequest, position: int, tokens: int, capabilities: Capabilities) -> None:  # noqa: ARG001  one prompt
    """Check that the prompt fits in the model's context.

    Raises `InvalidRequest` with TGI's messages, in TGI's order.
    """
    most, total = capabilities.max_input_tokens, capabilities.max_model_len
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
