"""Parameters for the choice of tokens, with vLLM's field names and meanings, for all dialects and backends."""

from __future__ import annotations

import math

import msgspec

from lmi_handlers.core.errors import InvalidRequest


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A format that the generated text must match. Exactly one format is set. Validated on construction; raises `InvalidRequest`.

    `json` is a JSON schema as JSON text. Unless `strict`, its objects may have properties that it does not declare.
    `json_object` asks for any JSON object, `choice` for one of the given texts. `grammar` uses the syntax of the
    engine's library: GBNF or Lark for llguidance (transformers, vLLM), EBNF for xgrammar (vLLM, if configured).
    """

    json: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        formats = self.__struct_fields__[:-1]
        given = [name for name in formats if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequest(
                f"must have exactly one of {', '.join(formats)}, got {' and '.join(given) or 'none'}",
                field="structured_outputs",
            )
        if getattr(self, given[0]) in ("", ()):
            raise InvalidRequest(f"{given[0]} must not be empty", field="structured_outputs")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's parameters for the sampler. Validated on construction; raises `InvalidRequest` that names the field.

    A `temperature` of 0 is greedy. A `top_k` of 0 or -1 means off. If `max_tokens` is None, the model's length is the
    limit. `logprobs=k` returns the sampled token and the k best per position (0: only the sampled one, None: nothing);
    `prompt_logprobs` does the same for the prompt. `stop` is matched by the text layer and never sent to a backend.
    `bad_words` must not appear in the text. If `allowed_token_ids` is set, only these tokens are generated. `watermark`
    marks the text by a slight preference for tokens that depend on the preceding ones (Kirchenbauer et al., left hash).
    `prompt_lookup_num_tokens`, a name of transformers', is the maximum number of tokens to draft per step by looking for
    repetitions. It changes no result. None means the engine's own setting. `thinking_token_budget` is the maximum number
    of tokens in a thought, after which its end is forced. None means the server's setting, -1 no maximum.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    structured_outputs: StructuredOutputs | None = None
    watermark: bool = False
    prompt_lookup_num_tokens: int | None = None
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        for name in _FLOATS:
            if not math.isfinite(getattr(self, name)):
                raise InvalidRequest("must be a finite number", field=name)
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"must be {_interval(value, low, high)}, got {value}", field=name)
        for name in ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"must be greater than 0, got {getattr(self, name)}", field=name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", field="min_tokens"
            )
        for name in ("stop", "bad_words"):
            if "" in getattr(self, name):
                raise InvalidRequest("must not contain an empty string", field=name)
        if self.allowed_token_ids == ():
            raise InvalidRequest("must not be empty", field="allowed_token_ids")
        biases = (self.logit_bias or {0: 0}).values()
        for bias in (min(biases), max(biases)):
            if not -100 <= bias <= 100:
                raise InvalidRequest(f"must map token ids to numbers from -100 to 100, got {bias}", field="logit_bias")

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature == 0.0

    def with_thinking_budget(self, default: int | None) -> SamplingParams:
        """Return the parameters with the budget that applies, or None if none does: -1 is never sent to a backend.

        A grammar applies from the first token, so there is no thought whose end could be forced.
        """
        budget = default if self.thinking_token_budget is None else self.thinking_token_budget
        if budget == NO_BUDGET or self.structured_outputs is not None:
            budget = None
        if budget == self.thinking_token_budget:
            return self
        return msgspec.structs.replace(self, thinking_token_budget=budget)

    def for_sample(self, sample: int) -> SamplingParams:
        """Return the parameters of sequence `sample` alone: `n` is 1, `stop` is empty, and its seed is its own."""
        if self.n == 1 and not self.stop:
            return self
        seed = None if self.seed is None else (self.seed + sample) % 2**64
        return msgspec.structs.replace(self, n=1, seed=seed, stop=())


_FLOATS = tuple(field.name for field in msgspec.structs.fields(SamplingParams) if field.type is float)
_INT64 = 2**63 - 1
NO_BUDGET = -1
"""`thinking_token_budget` without a maximum, as in vLLM."""

RANGES: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "max_tokens": (1, _INT64),
    "min_tokens": (0, _INT64),
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (-1, _INT64),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, 128),
    "prompt_logprobs": (0, 128),
    "prompt_lookup_num_tokens": (0, 64),
    "thinking_token_budget": (NO_BUDGET, _INT64),
}
"""Minimum and maximum of a field, both inclusive."""

ABOVE_ZERO = ("top_p", "typical_p", "repetition_penalty")
"""Fields that must be greater than 0."""


def _interval(value: float, low: float, high: float) -> str:
    if high == _INT64:
        return f"at least {low}" if value < low else f"at most {high}"
    return f"from {low} to {high}"
