"""The prompts of APIs that embed, score and classify texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmi_handlers.config.budget import Budget
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import Prompt, TextPair


def embedding_prompts(
    contents: Sequence[str | tuple[int, ...]], adapter: str | None, *, prefix: str = "", field: str
) -> tuple[Prompt, ...]:
    """Put `prefix` in front of each text. Raises `InvalidRequest` with `field` if there are token ids instead."""
    if prefix and not all(isinstance(content, str) for content in contents):
        raise InvalidRequest("cannot be combined with token ids", field=field)
    return tuple(Prompt(prefix + content if isinstance(content, str) else content, adapter) for content in contents)


def model_prompt(known: Mapping[str, str], name: str | None) -> str:
    """Return the text of the model's prompt called `name`, or none. Raises `InvalidRequest` if there is no such prompt."""
    if name is None:
        return ""
    if name not in known:
        names = ", ".join(known) or "none"
        raise InvalidRequest(f"must be the name of one of the model's prompts ({names})", field="prompt_name")
    return known[name]


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
