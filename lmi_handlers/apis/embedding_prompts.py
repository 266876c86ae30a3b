"""What APIs of embeddings share: the model's own prompts in front of the texts."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import Prompt


def embedding_prompts(
    contents: Sequence[str | tuple[int, ...]], adapter: str | None, *, prefix: str = "", field: str
) -> tuple[Prompt, ...]:
    """Put `prefix` in front of each text. Raises `InvalidRequest` with `field` if there are token ids instead."""
    if prefix and not all(isinstance(content, str) for content in contents):
        raise InvalidRequest("cannot be combined with token ids", field=field)
    return tuple(Prompt(prefix + content if isinstance(content, str) else content, adapter) for content in contents)
