"""The positions of tokens in a text."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.text.tokenizer import Tokenizer


class TokenSpan(msgspec.Struct, frozen=True, gc=False):
    """A token and its position: bytes `start` to `stop` of the UTF-8 text. Added special tokens have an empty span."""

    id: int
    text: str
    start: int
    stop: int


def token_spans(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
    """Tokenise `text`. Raises `InvalidRequest` if it is not valid Unicode."""
    try:
        # The batch call releases the GIL.
        [encoding] = tokenizer.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        sizes = None if text.isascii() else [0, *accumulate(len(char.encode()) for char in text)]
    except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate
        raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
    ids, offsets = encoding.ids, encoding.offsets
    del encoding  # it is as large as the spans
    return [
        TokenSpan(token_id, text[start:stop], *((start, stop) if sizes is None else (sizes[start], sizes[stop])))
        for token_id, (start, stop) in zip(ids, offsets, strict=True)
    ]
