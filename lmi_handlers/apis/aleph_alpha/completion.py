"""Aleph Alpha's text completions: `POST /complete`.

Source: Aleph Alpha's API reference, "Completion". null means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import msgspec

from formatters.aleph_alpha.completion import CompletionJsonFormatter, CompletionOptions, CompletionSseFormatter
from formatters.aleph_alpha.schemas import AlephAlphaError
from lmi_handlers.apis.aleph_alpha.chat import Penalty, error_response
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.openai.body import MAX_LOGPROBS
from lmi_handlers.apis.openai.dialect import OpenAIDialect, check_length
from lmi_handlers.apis.parameters import Affects, Param, client_field, sampling_params
from lmi_handlers.core.errors import InvalidRequest, LMIError, UnsupportedFeature, aliased
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import Parsed

NEUTRAL: Mapping[str, object] = {
    "sequence_penalty": 0,
    "repetition_penalties_include_prompt": False,
    "repetition_penalties_include_completion": True,
    "use_multiplicative_presence_penalty": False,
    "use_multiplicative_frequency_penalty": False,
    "penalty_bias": "",
    "penalty_exceptions": [],
    "completion_bias_inclusion": [],
    "completion_bias_exclusion_first_token_only": False,
    "steering_concepts": [],
}
"""Fields that change the text in ways that no engine supports. Only the value that changes nothing is accepted."""


class TextPromptItem(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A text. `controls`, which would steer the model's attention, is not supported."""

    data: str
    controls: list[object] | None = None


class TokenIdsPromptItem(msgspec.Struct, frozen=True, tag_field="type", tag="token_ids"):
    """Token ids. `controls` is not supported."""

    data: list[int]
    controls: list[object] | None = None


AlephAlphaPrompt = str | list[TextPromptItem | TokenIdsPromptItem]


def _not_zero(value: float) -> float | None:
    return value or None


class AlephAlphaCompletionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/complete`. Fields from `disable_optimizations` on are ignored."""

    model: Annotated[str, Affects("adapters")]
    prompt: AlephAlphaPrompt
    maximum_tokens: Annotated[int, Param("max_tokens")] | None = None
    minimum_tokens: Annotated[int, Param("min_tokens")] | None = None
    echo: Annotated[bool, Affects("prompt_logprobs")] | None = None
    temperature: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, Param(convert=_not_zero)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    n: int | None = None
    best_of: Annotated[int, Param("n", first=True)] | None = None
    logit_bias: dict[int, float] | None = None
    log_probs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS), Param("logprobs")] | None = None
    stop_sequences: Annotated[list[str], Param("stop")] | None = None
    tokens: bool | None = None
    raw_completion: bool | None = None
    completion_bias_exclusion: Annotated[list[str], Param("bad_words")] | None = None
    stream: bool | None = None

    sequence_penalty: float | None = None
    repetition_penalties_include_prompt: bool | None = None
    repetition_penalties_include_completion: bool | None = None
    use_multiplicative_presence_penalty: bool | None = None
    use_multiplicative_frequency_penalty: bool | None = None
    penalty_bias: str | None = None
    penalty_exceptions: list[str] | None = None
    completion_bias_inclusion: list[str] | None = None
    completion_bias_exclusion_first_token_only: bool | None = None
    steering_concepts: list[str] | None = None

    disable_optimizations: bool | None = None
    penalty_exceptions_include_stop_sequences: bool | None = None
    sequence_penalty_min_length: int | None = None
    use_multiplicative_sequence_penalty: bool | None = None
    completion_bias_inclusion_first_token_only: bool | None = None
    contextual_control_threshold: float | None = None
    control_log_additive: bool | None = None

    @property
    def shown(self) -> int:
        """The number of completions for the client."""
        return 1 if self.n is None else self.n

    @property
    def candidates(self) -> int:
        """The number of completions to generate. Raises `InvalidRequest`."""
        if self.best_of is None:
            return self.shown
        if self.best_of < self.shown:
            raise InvalidRequest(f"must be at least n ({self.shown}), got {self.best_of}", field="best_of")
        if self.best_of > self.shown and self.stream:
            raise InvalidRequest(
                "must equal n in a stream, because the best answers are only known at the end", field="best_of"
            )
        return self.best_of

    @property
    def prompt_only(self) -> bool:
        """True if only the prompt is returned. Clients use this to get its probabilities."""
        return self.maximum_tokens == 0 and bool(self.echo)

    def sampling_params(self) -> SamplingParams:
        """Translate. Raises `InvalidRequest` with Aleph Alpha's name for the field."""
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) not in (None, neutral):
                raise UnsupportedFeature(f"only {msgspec.json.encode(neutral).decode()} is supported", field=name)
        count = self.log_probs
        computed: dict[str, object] = {
            "n": self.candidates,
            "max_tokens": 1 if self.prompt_only else self.maximum_tokens,
            "temperature": self._temperature(),
            "logprobs": 0 if count is None and self.candidates > self.shown else count,
            "prompt_logprobs": (count or 0) if self.echo and (count is not None or self.tokens) else None,
        }
        with aliased(self.alias):
            return sampling_params(self, {}, computed)

    def alias(self, field: str) -> str:
        """Return the name under which the client set a field of `SamplingParams`."""
        return client_field(self, field)

    def _temperature(self) -> float:
        """A `temperature` of 0 means greedy, or with `top_k` or `top_p` sampling at temperature 1."""
        return self.temperature or (1.0 if self.top_k or self.top_p else 0.0)


def joined_prompt(prompt: AlephAlphaPrompt, field: str) -> str | tuple[int, ...]:
    """Join the items of a prompt to one text, or to one list of token ids. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        return prompt
    for place, item in enumerate(prompt):
        if item.controls:
            raise UnsupportedFeature("is not supported", field=f"{field}[{place}].controls")
    texts = [item.data for item in prompt if isinstance(item, TextPromptItem)]
    if len(texts) == len(prompt):
        return "".join(texts)
    if texts:
        raise InvalidRequest("must be texts or token ids, not both", field=field)
    return tuple(token_id for item in prompt if isinstance(item, TokenIdsPromptItem) for token_id in item.data)


class AlephAlphaCompletionDialect(OpenAIDialect):
    """Dialect of `/complete`: one prompt, `n` completions."""

    error_type = AlephAlphaError

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, AlephAlphaCompletionBody)
        if not isinstance(body.prompt, str):
            self._budget.check_parts("prompt", body.prompt)
        facts = self._facts()
        adapter = self._adapter(body.model, payload)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=(Prompt(joined_prompt(body.prompt, "prompt"), adapter),),
            sampling_params=body.sampling_params(),
            stream=bool(body.stream),
            ignored_parameters=ignored,
        )
        log_probs, tokens = body.log_probs is not None, bool(body.tokens)
        options = CompletionOptions(
            model_version=adapter or facts.model_id,
            n=body.shown,
            echo=bool(body.echo),
            prompt_only=body.prompt_only,
            log_probs=log_probs,
            tokens=tokens,
            raw=bool(body.raw_completion) or log_probs or tokens,
        )
        formatter = partial(CompletionSseFormatter if body.stream else CompletionJsonFormatter, options=options)
        fits = partial(check_length, "prompt")
        copies = body.shown if body.echo else 0
        return Parsed(request, formatter, body.alias, fits, "prompt", prompt_copies=copies)

    def error(self, error: LMIError) -> Reply:
        return error_response(error)
