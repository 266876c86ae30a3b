"""Where in a text its tokens are."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.text.tokenizer import Tokenizer


class TokenSpan(msgspec.Struct, frozen=True):
    """A token and its place: bytes `start` to `stop` of the text in UTF-8. Tokens that are added to it have an empty place."""

    id: int
    text: str
    start: int
    stop: int


def token_spans(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
    """Tokenise `text`. Raises `InvalidRequest` for text that is not Unicode."""
    try:
        # A batch, as that releases the interpreter's lock.
        [encoding] = tokenizer.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        sizes = None if text.isascii() else [0, *accumulate(len(char.encode()) for char in text)]
    except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate
        raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
    return [
        TokenSpan(token_id, text[start:stop], *((start, stop) if sizes is None else (sizes[start], sizes[stop])))
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
