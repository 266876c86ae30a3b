"""The APIs that `lmi conform` knows, each with a file of vectors."""

from __future__ import annotations

APIS = (
    "lmi",
    "tgi",
    "tgi-root",
    "mindie",
    "openai",
    "openai-responses",
    "openai-embeddings",
    "anthropic",
    "aleph-alpha",
    "tei",
    "tei-rerank",
    "sagemaker",
)
"""Names of the APIs. Some exclude each other: they share routes, or are for other kinds of models."""
