"""The answers of llama.cpp's server to `/infill`.

Source: the server's README, and its answers, which tests/apis/test_llama_cpp_peer.py compares.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count

StopType = Literal["none", "eos", "limit", "word"]


class LlamaCppTopToken(Response):
    """A token that could have been there instead."""

    id: Count
    token: str
    bytes: list[int]
    logprob: float


class LlamaCppToken(LlamaCppTopToken):
    """A generated token. Included if the request sets `n_probs`."""

    top_logprobs: list[LlamaCppTopToken]


class LlamaCppSettings(Response):
    """The parameters of the request, with the defaults of those that it does not set."""

    seed: Count
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: list[str]
    max_tokens: int
    n_predict: int
    ignore_eos: bool
    stream: bool
    n_probs: int


class LlamaCppTimings(Response):
    """Numbers of tokens, and times in milliseconds, of which the first includes that of waiting for the engine."""

    cache_n: Count
    prompt_n: Count
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: Count
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaCppCompletion(Response):
    """The complete answer, or the last event of a stream, whose `content` and `tokens` are empty.

    There are no slots, so `id_slot` is always -1. `truncated` is true if a time limit has ended the text. With
    `response_fields`, the answer has only those. A request with `continuation`, which llama.cpp does not have, goes on with
    a text that a time limit has ended.
    """

    index: Count
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: Count
    tokens_evaluated: Count
    generation_settings: LlamaCppSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: Count
    timings: LlamaCppTimings
    completion_probabilities: list[LlamaCppToken] | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class LlamaCppChunk(Response):
    """New text in a stream."""

    index: Count
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: Count
    tokens_evaluated: Count
    completion_probabilities: list[LlamaCppToken] | UnsetType = UNSET


class LlamaCppErrorDetails(Response):
    """The status, the cause and the kind of the error."""

    code: int
    message: str
    type: str


class LlamaCppError(Response):
    """An error."""

    error: LlamaCppErrorDetails
