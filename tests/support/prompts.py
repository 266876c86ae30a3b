"""Prompts for tests that need no tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from lmi_handlers.core.request import EncodedPrompt, RenderedPrompt


def encoded(*prompts: Iterable[int]) -> list[EncodedPrompt]:
    return [EncodedPrompt(list(prompt)) for prompt in prompts]


def rendered(num_tokens: int = 1, text: str = "Hello") -> tuple[RenderedPrompt, ...]:
    """The only prompt of a request."""
    return (RenderedPrompt(text, num_tokens),)
