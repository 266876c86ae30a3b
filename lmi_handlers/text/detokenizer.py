"""Converts token ids to text, one id at a time.

`tokenizers.decoders.DecodeStream` does the same. It is not used, because it raises an error if a decoder changes
earlier text, gets stuck at a token whose text is U+FFFD, and takes five times as long as `PieceDetokenizer`.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lmi_handlers.text.tokenizer import Pieces, Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


class Detokenizer(Protocol):
    """Turns the ids of one sequence into pieces of text. Joined, the pieces are the decoded text of the whole sequence.

    While a character is incomplete, the pieces are "". The id that completes it returns the whole character. Invalid
    bytes become U+FFFD. A character that is still incomplete at the end of the sequence is dropped.
    """

    def feed(self, token_id: int) -> str:
        """Return the text that `token_id` adds."""

    def fork(self) -> Self:
        """Return one that goes on from here by itself."""


def make_detokenizer(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
) -> Detokenizer:
    """Return a detokenizer for the tokens generated after a prompt.

    With `skip_special_tokens`, control tokens add no text. The text continues the prompt, so a leading space is kept.
    """
    pieces = tokenizer.pieces(skip_special_tokens=skip_special_tokens)
    if pieces is not None:
        return PieceDetokenizer(pieces)
    return WindowDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens)


class PieceDetokenizer:
    """For decoders in which each token has its own bytes: byte-level BPE, and SentencePiece with byte fallback.

    There is one difference. If a run of byte tokens is not valid UTF-8, a SentencePiece decoder replaces the whole run
    with U+FFFD. Here the valid characters before the error have already been sent, so they stay.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._incomplete = b""

    def feed(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if not self._incomplete and isinstance(piece, str):
            return piece
        data = self._incomplete + (piece.encode() if isinstance(piece, str) else piece)
        text, decoded = codecs.utf_8_decode(data, "replace", False)
        self._incomplete = data[decoded:]
        return text

    def fork(self) -> Self:
        return copy.copy(self)


class WindowDetokenizer:
    """For all other decoders. Decodes the last few ids with and without the new one and returns the difference."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._decode = tokenizer.backend.decode
        self._hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._window = list(prompt_token_ids[-_CONTEXT_LENGTH:])
        self._sent = len(self._window)  # number of ids at the start of the window whose text has been returned
        self._sent_text = self._decode(self._window, skip_special_tokens=False)

    def feed(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window, skip_special_tokens=False)
        waiting = len(self._window) - self._sent
        if text.endswith("\ufffd") and waiting < _LONGEST_CHARACTER:
            return ""
        if len(text) <= len(self._sent_text):
            self._window.pop()  # an id without text would only make the window longer
            return ""
        piece = text[len(self._sent_text) :]
        del self._window[: self._sent]
        self._sent = waiting
        self._sent_text = self._decode(self._window, skip_special_tokens=False)
        return piece

    def fork(self) -> Self:
        other = copy.copy(self)
        other._window = self._window.copy()  # noqa: SLF001  a copy of this one
        return other


_CONTEXT_LENGTH = 4  # tokens, enough for a decoder to see that it is not at the start of a text
_LONGEST_CHARACTER = 4  # in bytes, and so in byte tokens
