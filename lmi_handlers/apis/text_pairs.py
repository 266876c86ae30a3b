"""Shared by APIs of scores: a query in front of each of several texts."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.config.budget import Budget
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import Prompt, TextPair


def query_pairs(
    query: str, texts: Sequence[str], adapter: str | None, *, budget: Budget, field: str
) -> tuple[Prompt, ...]:
    """Pair `query` with each text. Raises `InvalidRequest` with `field` if there is none, or too much to compute."""
    if not texts:
        raise InvalidRequest("must not be empty", field=field)
    budget.check_sequences(field, len(texts), 1)
    budget.check_repeated("query", query, len(texts))
    return tuple(Prompt(TextPair(query, text), adapter) for text in texts)


def check_cross_encoder(capabilities: Capabilities) -> None:
    """Raise `UnsupportedFeature` if the model has several labels, none of which says how well two texts match."""
    if len(capabilities.labels) > 1:
        raise UnsupportedFeature(f"this model has {len(capabilities.labels)} labels, so it is not a cross-encoder")
