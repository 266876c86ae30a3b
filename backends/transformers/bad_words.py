"""Words that must not be generated, as sequences of token ids."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from lmi_handlers.core.errors import InvalidRequest

MAX_BAD_WORDS = 1000
MAX_CHARACTERS = 50_000


class BadWords:
    """Turns words into ids by a tokenizer.json, of which the model knows those below `vocab_size`.

    The limits keep a request from holding up everybody's step.
    """

    def __init__(self, tokenizer_file: Path, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def token_ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """Return each word as it is at the start of a text and as it is after a space. Raises `InvalidRequest`.

        As in vLLM, any space before a word is left out first.
        """
        if len(words) > MAX_BAD_WORDS:
            raise InvalidRequest(f"must be at most {MAX_BAD_WORDS} words, got {len(words)}", field="bad_words")
        if (length := sum(map(len, words))) > MAX_CHARACTERS:
            raise InvalidRequest(f"must have at most {MAX_CHARACTERS} characters, got {length}", field="bad_words")
        sequences: list[list[int]] = []
        for word in words:
            for text in (word.lstrip(), f" {word.lstrip()}"):
                try:
                    ids = self._tokenizer.encode(text, add_special_tokens=False).ids
                except TypeError as error:  # how the library meets a lone surrogate
                    raise InvalidRequest("must be valid Unicode text", field="bad_words") from error
                if ids and ids not in sequences and max(ids) < self._vocab_size:
                    sequences.append(ids)
        return sequences
