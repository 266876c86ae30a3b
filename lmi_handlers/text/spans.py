"""The positions of tokens in a text."""

from __future__ import annotations

from itertools import accumulate

import msgspec
import tokenizers

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.text.tokenizer import Tokenizer


class TokenSpan(msgspec.Struct, frozen=True, gc=False):
    """A token and its position: bytes `start` to `stop` of the UTF-8 text. Added special tokens have an empty span."""

    id: int
    text: str
    start: int
    stop: int


class MarkedSpan(msgspec.Struct, frozen=True, gc=False):
    """A `TokenSpan` that says whether the tokenizer has added the token. If so, it has no position."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def token_spans(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
    """Tokenise `text`. Raises `InvalidRequest` if it is not valid Unicode."""
    encoding, sizes = _encode(tokenizer, text, add_special_tokens)
    ids, offsets = encoding.ids, encoding.offsets
    del encoding  # it is as large as the spans
    return [
        TokenSpan(token_id, text[start:stop], *((start, stop) if sizes is None else (sizes[start], sizes[stop])))
        for token_id, (start, stop) in zip(ids, offsets, strict=True)
    ]


def marked_spans(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[MarkedSpan]:
    """Tokenise `text`. Raises `InvalidRequest` if it is not valid Unicode."""
    encoding, sizes = _encode(tokenizer, text, add_special_tokens)
    return [
        MarkedSpan(token_id, token, True, None, None)
        if special
        else MarkedSpan(
            token_id, text[start:stop], False, *((start, stop) if sizes is None else (sizes[start], sizes[stop]))
        )
        for token_id, token, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]


def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> tuple[tokenizers.Encoding, list[int] | None]:
    """Return the encoding, and for other than ASCII text how many bytes precede each character."""
    try:
        # The batch call releases the GIL.
        [encoding] = tokenizer.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding, None if text.isascii() else [0, *accumulate(len(char.encode()) for char in text)]
    except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate
        raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
