"""The answers of TEI's routes. Source: the OpenAPI document of text-embeddings-inference 1.7."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


class EmbeddingErrorResponse(Response):
    """An error: its cause, and its kind."""

    error: str
    error_type: ErrorType


class Rank(Response, kw_only=True):
    """The score of a text, and its place in the request. `text` is omitted unless the request asks for it."""

    index: Count
    text: str | UnsetType = UNSET
    score: float


class Prediction(Response):
    """The score of a label."""

    score: float
    label: str


class SparseValue(Response):
    """The weight of a token of the vocabulary."""

    index: Count
    value: float


class LabelIds(Response):
    """The labels of a classifier."""

    id2label: dict[str, str]
    label2id: dict[str, Count]


class PoolingName(Response):
    """The pooling of the vectors of tokens."""

    pooling: str


class ModelType(Response, kw_only=True):
    """One of these: what the model computes."""

    embedding: PoolingName | UnsetType = UNSET
    reranker: LabelIds | UnsetType = UNSET
    classifier: LabelIds | UnsetType = UNSET


class EmbeddingInfo(Response, kw_only=True):
    """TEI's information about the model and the server."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: Count
    max_input_length: Count
    max_batch_tokens: Count
    max_batch_requests: Count | None
    max_client_batch_size: Count
    auto_truncate: bool
    tokenization_workers: Count
    version: str
    sha: str | None
    docker_label: str | None
