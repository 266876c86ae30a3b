"""The answers of vLLM's routes for scores and tokens. Source: vLLM 0.32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count


class RerankUsage(Response):
    """The number of tokens of all pairs."""

    prompt_tokens: Count
    total_tokens: Count


class RerankDocument(Response):
    """A document. `multi_modal` would be its images."""

    text: str
    multi_modal: None


class RerankResult(Response, kw_only=True):
    """The score of a document, and its place in the request."""

    index: Count
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class RerankResponse(Response):
    """Documents by their scores, highest first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]


class ScoreData(Response):
    """The score of a pair of texts."""

    index: Count
    object: Literal["score"]
    score: float


class ScoreUsage(Response):
    """The number of tokens of all prompts or pairs."""

    prompt_tokens: Count
    total_tokens: Count
    completion_tokens: Literal[0]
    prompt_tokens_details: None


class ScoreResponse(Response):
    """The scores of pairs of texts, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreData]
    usage: ScoreUsage


class ClassifyData(Response):
    """The scores of a text's labels, in the model's order, and the label with the highest."""

    index: Count
    label: str
    probs: list[float]
    num_classes: Count


class ClassifyResponse(Response):
    """The classes of texts, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassifyData]
    usage: ScoreUsage


class PoolingData(Response):
    """The vector of a text, the vectors of its tokens, or its scores. In base64, all numbers are joined."""

    index: Count
    object: Literal["pooling"]
    data: Sequence[float | list[float]] | str


class PoolingResponse(Response):
    """What the model's pooler returns for texts, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PoolingData]
    usage: ScoreUsage


class VllmTokenizeResponse(Response):
    """The token ids of a prompt. `token_strs` are the vocabulary's names of the tokens, null unless asked for."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str] | None


class DetokenizeResponse(Response):
    """The text of tokens."""

    prompt: str
