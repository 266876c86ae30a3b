"""Limits on the text of a request, before any of it is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lmi_handlers.core.errors import InvalidRequest

MAX_CHARACTERS = 1_000_000
"""Characters in all texts of a request. A tokenizer takes about a second for them."""

_BYTES_PER_CHARACTER = 4
_SPECIAL_TOKENS = 8


def read_texts(inputs: object, field: str = "inputs") -> tuple[list[str], bool]:
    """Return the texts of a string or a list of strings, and whether it was a string. Raises `InvalidRequest`."""
    single = isinstance(inputs, str)
    texts = [inputs] if single else inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("must be a text or a list of texts", field=field)
    return texts, single


def check_characters(texts: Iterable[str], field: str = "inputs") -> None:
    """Raise `InvalidRequest` if the texts are too long to be tokenised."""
    characters = sum(map(len, texts))
    if characters > MAX_CHARACTERS:
        raise InvalidRequest(f"must have at most {MAX_CHARACTERS} characters in total, got {characters}", field=field)


def check_tokens(tokenizer: Any, texts: Sequence[tuple[str, str | None]], hint: str = "parameters.truncation") -> None:
    """Raise `InvalidRequest` if a text, with its pair, has more tokens than the model takes."""
    limit = tokenizer.model_max_length
    for text, pair in texts:
        if _BYTES_PER_CHARACTER * (len(text) + len(pair or "")) + _SPECIAL_TOKENS <= limit:
            continue  # a token has at least one byte
        count = len(tokenizer(text, pair, truncation=False, verbose=False)["input_ids"])
        if count > limit:
            raise InvalidRequest(
                f"has a text of {count} tokens; the model takes at most {limit}, and {hint}=true cuts it",
                field="inputs",
            )
