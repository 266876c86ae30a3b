"""The body of llama.cpp's `/infill`, and its translation to `SamplingParams`. null means absent.

Source: the README of llama.cpp's server, and its answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from formatters.llama_cpp.schemas import LlamaCppSettings
from lmi_handlers.apis.parameters import Affects, Param, client_field, sampling_params
from lmi_handlers.apis.structured_outputs import CONSTRAINT
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature, aliased
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

RANDOM_SEED = 2**32 - 1
"""What llama.cpp shows if the seed is random. -1 asks for it, too."""

UNLIMITED = -1
BANNED = -100.0
"""The bias of a token that `false` forbids."""

DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}

NEUTRAL: Mapping[str, float] = {
    "dynatemp_range": 0,
    "dry_multiplier": 0,
    "xtc_probability": 0,
    "mirostat": 0,
    "n_indent": 0,
    "post_sampling_probs": False,
}
"""Fields that change the answer in ways that no engine supports. Only the value that changes nothing is accepted."""


def _seed(given: int) -> int | None:
    return None if given in (-1, RANDOM_SEED) else given % 2**32


def _length(given: int) -> int | None:
    """Translate `n_predict`: -1 is no limit. 0 prepares the cache, for which llama.cpp computes one token as well."""
    if given < UNLIMITED:
        raise InvalidRequest(f"must be at least {UNLIMITED}, got {given}", field="max_tokens")
    return None if given == UNLIMITED else max(given, 1)


def _words(given: list[str]) -> tuple[str, ...]:
    return tuple(word for word in given if word)


def _biases(given: Mapping[int, float | bool] | list[tuple[int, float | bool]]) -> dict[int, float]:
    pairs = given.items() if isinstance(given, Mapping) else given
    if any(bias is True for _, bias in pairs):
        raise InvalidRequest("must be numbers, or false", field="logit_bias")
    return {token: BANNED if bias is False else float(bias) for token, bias in pairs}


def _not_negative(given: float) -> float:
    return max(given, 0)


class ExtraFile(msgspec.Struct, frozen=True):
    """Another file, or a part of one, that the model may need to know."""

    text: str
    filename: str = "tmp"


class InfillBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/infill`. `prompt` goes after `input_prefix`, as in llama.cpp."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None
    model: Annotated[str, Affects("adapters")] | None = None

    n_predict: Annotated[int, Param("max_tokens", convert=_length)] | None = None
    n_cmpl: Annotated[int, Param("n")] | None = None
    temperature: Annotated[float, Param(convert=_not_negative)] | None = None
    top_k: Annotated[int, Param(convert=_not_negative)] | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: Annotated[float, Param("repetition_penalty")] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int, Param(convert=_seed)] | None = None
    stop: Annotated[list[str], Param(convert=_words)] | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[int, float | bool] | list[tuple[int, float | bool]], Param(convert=_biases)] | None = (
        None
    )
    n_probs: Annotated[int, Affects("logprobs")] | None = None
    grammar: Annotated[str, CONSTRAINT] | None = None
    json_schema: Annotated[dict[str, Any] | bool, CONSTRAINT] | None = None
    stream: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None

    dynatemp_range: float | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    mirostat: int | None = None
    n_indent: int | None = None
    post_sampling_probs: bool | None = None

    def sampling_params(self, ends: tuple[int, ...]) -> SamplingParams:
        """Translate, with the tokens that end the middle. Raises `InvalidRequest` with llama.cpp's name for the field."""
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) not in (None, neutral):
                raise UnsupportedFeature(f"only {msgspec.json.encode(neutral).decode()} is supported", field=name)
        computed: dict[str, object] = {
            "logprobs": self.n_probs if (self.n_probs or 0) > 0 else None,
            "stop_token_ids": None if self.ignore_eos else ends,
            "structured_outputs": self._constraint(),
        }
        if self.top_p is not None and self.top_p <= 0:  # the most probable token is always kept
            computed |= {"top_p": 1.0, "top_k": 1}
        with aliased(self.alias):
            return sampling_params(self, DEFAULTS, computed)

    def settings(self, params: SamplingParams, *, stream: bool) -> LlamaCppSettings:
        """Return the parameters as the answer shows them."""
        length = UNLIMITED if self.n_predict is None else self.n_predict
        return LlamaCppSettings(
            seed=RANDOM_SEED if params.seed is None else params.seed,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repeat_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            stop=[*params.stop],
            max_tokens=length,
            n_predict=length,
            ignore_eos=params.ignore_eos,
            stream=stream,
            n_probs=self.n_probs or 0,
        )

    def alias(self, field: str) -> str:
        """Return the name under which the client set a field of `SamplingParams`."""
        if field == "structured_outputs" and not self.grammar:  # an empty one is none
            return "json_schema"
        return client_field(self, field)

    def _constraint(self) -> StructuredOutputs | None:
        if self.grammar and self.json_schema is not None:
            raise InvalidRequest("cannot be combined with json_schema", field="grammar")
        if self.json_schema is not None:
            return StructuredOutputs(json=msgspec.json.encode(self.json_schema).decode())
        return StructuredOutputs(grammar=self.grammar) if self.grammar else None
