"""LMI's request body, and the translation of its generation parameters, with all their aliases, to `SamplingParams`.

Source: the LMI input/output schema document, "GenerationParameters" and the additional parameters of vLLM, lmi-dist and
TensorRT-LLM. `structured_outputs` and `guided_*` are vLLM's: LMI passes unknown parameters on to vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_json, decode_typed, unknown_names
from lmi_handlers.apis.parameters import Affects, Param, as_tuple, client_field, sampling_params, values_of
from lmi_handlers.apis.structured_outputs import CONSTRAINT, StructuredOutputsBody, constraint_field, constraint_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidBody, InvalidRequest, aliased
from lmi_handlers.core.request import BeamSearchParams, Prompt
from lmi_handlers.core.sampling_params import RANGES, SamplingParams

DEFAULT_MAX_NEW_TOKENS = 30

T = TypeVar("T")


def _integer(value: int | str) -> int:
    """Convert a seed. It may be a string: DJL's front end writes seeds as strings, and clients do the same."""
    if not isinstance(value, str):
        return value
    # Limits the digits: int() raises a different error for thousands of them.
    if not re.fullmatch(r"[0-9]{1,20}", value):
        raise InvalidRequest(f"must be an integer from 0 to {RANGES['seed'][1]}, got {value[:32]!r}", field="seed")
    return int(value)


def _strings(value: list[str] | str | bool) -> tuple[str, ...] | None:
    """Convert stop strings.

    TensorRT-LLM's boolean `stop` cancels a running request. It is ignored here: HTTP clients disconnect instead.
    """
    return None if isinstance(value, bool) else as_tuple(value)


class LmiParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The `parameters` object. null means absent, because many clients write out all their fields."""

    do_sample: Annotated[bool, Affects("temperature", "top_k", "top_p")] | None = None
    seed: Annotated[int | str | None, Param(convert=_integer)] = None
    random_seed: Annotated[int | str | None, Param("seed", _integer, first=True)] = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    runtime_top_k: Annotated[int, Param("top_k", first=True)] | None = None
    top_p: float | None = None
    runtime_top_p: Annotated[float, Param("top_p", first=True)] | None = None
    min_p: float | None = None
    typical_p: float | None = None
    prompt_lookup_num_tokens: int | None = None
    thinking_token_budget: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | str | None = None
    bad_sequences: Annotated[list[str] | str | None, Param("bad_words")] = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Annotated[StructuredOutputsBody, CONSTRAINT] | None = None
    guided_json: Annotated[dict[str, Any] | bool | str | None, CONSTRAINT] = None
    guided_regex: Annotated[str, CONSTRAINT] | None = None
    guided_choice: Annotated[list[str], CONSTRAINT] | None = None
    guided_grammar: Annotated[str, CONSTRAINT] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    max_new_tokens: Annotated[int, Param("max_tokens")] | None = None
    max_tokens: int | None = None
    request_output_len: Annotated[int, Param("max_tokens", first=True)] | None = None
    min_new_tokens: Annotated[int, Param("min_tokens")] | None = None
    min_tokens: int | None = None
    min_length: Annotated[int, Param("min_tokens")] | None = None
    stop_sequences: Annotated[list[str] | str | None, Param("stop")] = None
    stop: Annotated[list[str] | str | bool | None, Param(convert=_strings)] = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos_token: Annotated[bool, Param("ignore_eos")] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate: int | None = None
    n: int | None = None
    best_of: Annotated[int, Param("n")] | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    len_penalty: Annotated[float, Param("length_penalty", first=True)] | None = None
    early_stopping: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    top_n_tokens: Annotated[int, Param("logprobs", first=True)] | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    return_full_text: bool | None = None
    output_formatter: str | None = None

    def sampling_params(
        self, *, stream: bool, needs_logprobs: bool, sampled_defaults: Mapping[str, float]
    ) -> SamplingParams:
        """Translate. Raises `InvalidRequest` with LMI's name for the field.

        Without `do_sample` and `temperature`, decoding is greedy. A temperature by itself turns sampling on, as in LMI
        since 0.32. `sampled_defaults` are LMI's defaults for the backend in use if `do_sample` is true. A stream can
        only show the first sequence, so only one is generated.
        """
        defaults = sampled_defaults if self.do_sample else {}
        computed: dict[str, object] = {
            "n": 1 if stream else self.sequences,
            "temperature": self._temperature(defaults),
            "logprobs": self.top_tokens if needs_logprobs else None,
            "prompt_logprobs": self.prefill_logprobs,
        }
        with aliased(self.alias):
            computed["structured_outputs"] = constraint_of(self)
            return sampling_params(self, {"max_tokens": DEFAULT_MAX_NEW_TOKENS, **defaults}, computed)

    def beam_search_params(self) -> BeamSearchParams | None:
        """Translate the beam search parameters. Returns None for fewer than two beams. Raises `InvalidRequest`."""
        if _at_least("num_beams", self.num_beams, 1) == 1:
            return None
        with aliased(self.alias):
            return BeamSearchParams(**values_of(self, BeamSearchParams))

    @property
    def sequences(self) -> int:
        """The number of sequences to generate. LMI shows all `best_of` sequences; without `n` and `best_of`, all beams."""
        sequences = max(_at_least("n", self.n, 1), _at_least("best_of", self.best_of, 1))
        return sequences if sequences > 1 else _at_least("num_beams", self.num_beams, 1)

    @property
    def top_tokens(self) -> int:
        """The number of alternatives per token. `logprobs` 1, LMI's default, shows none."""
        if self.top_n_tokens is not None:
            return self.top_n_tokens
        return self.logprobs if self.logprobs is not None and self.logprobs != 1 else 0

    @property
    def prefill_logprobs(self) -> int | None:
        """`prompt_logprobs` for `prefill`.

        LMI never shows alternatives for prompt tokens, whatever the request says.
        """
        asked = _first(self.prompt_logprobs, 0 if self.decoder_input_details else None)
        return None if asked is None else min(asked, 0)  # a negative number is rejected later

    @property
    def truncate_to(self) -> int | None:
        """The number of prompt tokens to keep, from the end."""
        return None if self.truncate is None else _at_least("truncate", self.truncate, 1)

    def alias(self, field: str) -> str:
        """Return the name under which the client set a field of `SamplingParams`, with its path in the body."""
        if field == "adapters":
            return field  # next to `parameters`, not in it
        name = constraint_field(self) if field == "structured_outputs" else client_field(self, field)
        return f"parameters.{name}"

    def _temperature(self, defaults: Mapping[str, float]) -> float:
        if self.do_sample is False or (self.do_sample is None and self.temperature is None):
            return 0.0
        return defaults.get("temperature", 1.0) if self.temperature is None else self.temperature


# Parameters that are ignored, with their defaults: fast tokenizers join special tokens in one way only, and beam search
# parameters need beam search. A value other than the default is reported as ignored.
_WITHOUT_EFFECT: dict[str, object] = {"spaces_between_special_tokens": True}
_WITHOUT_EFFECT_WITHOUT_BEAMS: dict[str, object] = {"length_penalty": 1.0, "len_penalty": 1.0, "early_stopping": False}


class LmiBody(msgspec.Struct, frozen=True):
    """A parsed body. `ignored` names fields without effect, which are reported to the client.

    `stream` is None if not given.
    """

    prompts: tuple[Prompt, ...]
    parameters: LmiParameters
    ignored: tuple[str, ...]
    stream: bool | None


def parse_body(payload: Payload, budget: Budget) -> LmiBody:
    """Validate a body. A `text/plain` body is the prompt itself. Raises `InvalidRequest`, which names the field."""
    body = _decode(payload)
    inputs = _inputs(body.inputs, budget)
    parameters, ignored = _parameters(body.parameters)
    if payload.content_type != "text/plain":
        ignored = unknown_names(payload.fields, _Fields, nulls=False) + ignored
    budget.check_fields(parameters, prefix="parameters.")
    if not isinstance(body.stream, bool | None):
        raise InvalidRequest(f"must be true or false, got {body.stream!r:.40}", field="stream")
    adapters = _adapters(payload.adapter if body.adapters is None else body.adapters, len(inputs))
    prompts = tuple(map(Prompt, inputs, adapters))
    return LmiBody(prompts, parameters, ignored, body.stream)


def parse_inputs(payload: Payload, budget: Budget) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """Return the texts of a body, whether `inputs` is a single text, and the names of its other fields.

    Raises `InvalidRequest`.
    """
    body = _decode(payload)
    others = () if payload.content_type == "text/plain" else tuple(name for name in payload.fields if name != "inputs")
    return _inputs(body.inputs, budget), isinstance(body.inputs, str), others


class _Fields(msgspec.Struct, frozen=True):
    inputs: object = msgspec.UNSET
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    stream: object = None
    adapters: object = None


def _decode(payload: Payload) -> _Fields:
    if payload.content_type == "text/plain":
        try:
            return _Fields(inputs=payload.data.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8: {error}") from error
    try:
        return decode_typed(payload.data, _Fields)
    except InvalidBody as error:
        kind = type(decode_json(payload.data)).__name__
        raise InvalidRequest(f"the body must be a JSON object with the field 'inputs', got {kind}") from error


def _inputs(value: object, budget: Budget) -> tuple[str, ...]:
    if value is msgspec.UNSET:
        raise InvalidRequest("is required; it must be a string or a list of strings", field="inputs")
    if isinstance(value, str):
        if not value:
            raise InvalidRequest("must not be empty", field="inputs")
        return (value,)
    if not isinstance(value, list):
        raise InvalidRequest(f"must be a string or a list of strings, got {type(value).__name__}", field="inputs")
    if not value:
        raise InvalidRequest("must not be an empty list", field="inputs")
    budget.check_sequences("inputs", len(value), 1)
    for position, prompt in enumerate(value):
        if not isinstance(prompt, str) or not prompt:
            raise InvalidRequest("must be a non-empty string", field=f"inputs[{position}]")
    return tuple(value)


def _adapters(value: object, prompts: int) -> tuple[str | None, ...]:
    """Accept one name for all prompts, or a list with one name per prompt; "" and None stand for the model itself."""
    values: list[object] = value if isinstance(value, list) else [value] * prompts
    if len(values) != prompts:
        raise InvalidRequest(f"must have a name for each of the {prompts} prompts, got {len(values)}", field="adapters")
    names = tuple(name or None for name in values if isinstance(name, str | None))
    if len(names) != len(values):
        raise InvalidRequest("must be the name of an adapter, or a list of names", field="adapters")
    return names


def _parameters(value: msgspec.Raw) -> tuple[LmiParameters, tuple[str, ...]]:
    try:
        ignored = [*unknown_names(decode_typed(value, dict[str, msgspec.Raw]), LmiParameters, nulls=True)]
    except InvalidBody as error:
        kind = type(decode_json(bytes(value))).__name__
        raise InvalidRequest(f"must be an object, got {kind}", field="parameters") from error
    parameters = decode_typed(value, LmiParameters, prefix="parameters")
    without_effect = _WITHOUT_EFFECT
    if (parameters.num_beams or 1) == 1:
        without_effect = without_effect | _WITHOUT_EFFECT_WITHOUT_BEAMS
    if parameters.stop is True:
        ignored.append("stop")
    ignored += [name for name, default in without_effect.items() if getattr(parameters, name) not in (None, default)]
    return parameters, tuple(ignored)


def _first(*values: T | None) -> T | None:
    for value in values:
        if value is not None:
            return value
    return None


def _at_least(field: str, value: int | None, low: int) -> int:
    if value is None:
        return low
    if value < low:
        raise InvalidRequest(f"must be at least {low}, got {value}", field=f"parameters.{field}")
    return value
