"""Describes what the server would do with a request, in a document. Nothing is generated for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from formatters.base import Formatter
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.request import BeamSearchParams, GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import ModelFacts, Parsed
from lmi_handlers.serving.prompts import TokenizedPrompt

Origin = Literal["request", "generation_config.json", "serving.properties", "API", "default"]
"""The origin of a sampling parameter's value. "API": the API's rules derive it from other fields of the body."""


class ExplainedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of `SamplingParams`. `field` is the request's name for it, if the value is from there."""

    value: Any
    origin: Origin
    field: str | None = None


class ExplainedPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt after the chat template. `token_ids` are those of the text: an image's or a sound's come from the engine."""

    text: str
    num_tokens: int
    token_ids: list[int]
    images: int = 0
    sounds: int = 0
    adapter: str | None = None


class ExplainedLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits in tokens and seconds. `max_tokens` is how long an answer can become, after the longest prompt."""

    max_model_len: int
    max_input_tokens: int
    max_tokens: int
    predict_timeout: float
    cut_after: float | None = None
    cut_by: str | None = None


class ExplainedFormat(msgspec.Struct, frozen=True):
    """The answer's format."""

    formatter: str
    content_type: str
    streams: bool


class ChosenDialect(msgspec.Struct, frozen=True):
    """The dialect of a body, and the field that has decided it on a route that takes several."""

    name: str
    field: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document. `task` is "generate", or what is computed for the prompts.

    `sampling_params` has the fields that are not vLLM's defaults, or that the body names, and a few more.
    `continued_tokens` is the number of tokens of the answer that this one continues.
    """

    model: str
    engine: str
    device: str
    dialect: str
    chosen_by_field: str | None = None
    prompts: list[ExplainedPrompt]
    task: str
    sampling_params: dict[str, ExplainedValue]
    beam_search: BeamSearchParams | None = None
    ignored_fields: tuple[str, ...] = ()
    continued_tokens: int = 0
    priority: int = 0
    limits: ExplainedLimits
    format: ExplainedFormat


def explain(
    parsed: Parsed,
    body: object,
    *,
    chosen: ChosenDialect,
    tokenized: Sequence[TokenizedPrompt],
    formatter: Formatter,
    facts: ModelFacts,
    deadline: Deadline,
    now: float,
) -> Explanation:
    """Explain a request that was found to be valid. `body` is the decoded JSON, or None if the body is none."""
    request, capabilities = parsed.request, facts.capabilities
    pooling = request.pooling_params
    cutoff = deadline.cutoff
    longest = max(len(prompt.token_ids) for prompt in tokenized)
    return Explanation(
        model=facts.model_id,
        engine=capabilities.backend,
        device=capabilities.device,
        dialect=chosen.name,
        chosen_by_field=chosen.field,
        prompts=[
            ExplainedPrompt(
                found.text,
                len(found.token_ids),
                found.token_ids,
                len(prompt.images),
                len(prompt.sounds),
                prompt.adapter,
            )
            for prompt, found in zip(request.prompts, tokenized, strict=True)
        ],
        sampling_params=_sampling_params(parsed, body, facts) if pooling is None else {},
        task="generate" if pooling is None else pooling.task,
        beam_search=request.beam_search,
        ignored_fields=request.ignored_parameters,
        continued_tokens=len(request.generated),
        priority=request.priority,
        limits=ExplainedLimits(
            max_model_len=capabilities.max_model_len,
            max_input_tokens=capabilities.max_input_tokens,
            max_tokens=_longest_answer(request, longest, capabilities),
            predict_timeout=round(deadline.time - now, 1),
            cut_after=None if cutoff is None else round(cutoff.time - now, 1),
            cut_by=None if cutoff is None else f"option.{cutoff.option}",
        ),
        format=ExplainedFormat(type(formatter).__name__, formatter.content_type, formatter.streams),
    )


def _longest_answer(request: GenerationRequest, prompt_tokens: int, capabilities: Capabilities) -> int:
    if request.pooling_params is not None:
        return 0
    room = capabilities.max_model_len - prompt_tokens
    limits = (room, request.sampling_params.max_tokens, capabilities.max_output_len)
    return min(limit for limit in limits if limit is not None)


def _sampling_params(parsed: Parsed, body: object, facts: ModelFacts) -> dict[str, ExplainedValue]:
    params, ignored = parsed.request.sampling_params, parsed.request.ignored_parameters
    explained = {}
    for name in params.__struct_fields__:
        value, field = getattr(params, name), parsed.alias(name)
        named = _names(body, field) and field.rpartition(".")[2] not in ignored
        origin = _origin(name, value, named=named, facts=facts)
        if origin is not None:
            explained[name] = ExplainedValue(value, origin, field if named else None)
    return explained


def _origin(name: str, value: object, *, named: bool, facts: ModelFacts) -> Origin | None:
    """Return where a value is from, or None for a default that needs no word."""
    if named:
        return "request"
    if name in facts.sampling_defaults and facts.sampling_defaults[name] == value:
        return "generation_config.json"
    if value == getattr(_DEFAULTS, name):
        return "default" if name in _ALWAYS else None
    return "serving.properties" if name in _OPTIONS else "API"


def _names(body: object, field: str) -> bool:
    """Tell whether a body has a field such as `parameters.top_p` with a value other than null."""
    for name in field.split("."):
        if not isinstance(body, dict):
            return False
        body = body.get(name)
    return body is not None


_DEFAULTS = SamplingParams()
_ALWAYS = ("max_tokens", "temperature", "top_p", "top_k")
"""Fields that decide so much that they are shown in any case."""

_OPTIONS = ("thinking_token_budget",)
"""Fields whose defaults are options."""
