"""Words that must not be generated, as sequences of token ids."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from lmi_handlers.core.errors import InvalidRequest

MAX_BAD_WORDS = 1000
MAX_CHARACTERS = 50_000

_REMEMBERED = 16
"""Lists of words whose tokens are kept: a request with many samples starts each of them with the same words."""


class BadWords:
    """Turns words into token ids with a tokenizer.json. The model only has ids below `vocab_size`.

    The limits keep one request from delaying the step of all others.
    """

    def __init__(self, tokenizer_file: Path, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._known = lru_cache(_REMEMBERED)(self._encode)

    def token_ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """Return the ids of each word, both at the start of a text and after a space. Raises `InvalidRequest`.

        As in vLLM, leading spaces of a word are removed first.
        """
        if len(words) > MAX_BAD_WORDS:
            raise InvalidRequest(f"must have at most {MAX_BAD_WORDS} words, got {len(words)}", field="bad_words")
        if (length := sum(map(len, words))) > MAX_CHARACTERS:
            raise InvalidRequest(f"must have at most {MAX_CHARACTERS} characters, got {length}", field="bad_words")
        return self._known(words)

    def _encode(self, words: tuple[str, ...]) -> list[list[int]]:
        sequences: dict[tuple[int, ...], list[int]] = {}
        for word in words:
            for text in (word.lstrip(), f" {word.lstrip()}"):
                try:
                    ids = self._tokenizer.encode(text, add_special_tokens=False).ids
                except TypeError as error:  # raised by the library for a lone surrogate
                    raise InvalidRequest("must be valid Unicode text", field="bad_words") from error
                if ids and max(ids) < self._vocab_size:
                    sequences[tuple(ids)] = ids
        return list(sequences.values())
