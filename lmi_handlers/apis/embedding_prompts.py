"""Shared by APIs of embeddings: the model's own prompts in front of the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import Prompt


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
