"""A model's tokenizer as web workers use it: text to ids, and what each id stands for."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.text.bundle import TOKENIZER_FILE, TextBundle, byte_characters

_SHORT = 1024
"""Characters up to which the library's plain call is the quickest."""

_CHUNK = 32_768
_CUT = 16
"""Tokens by which a cut between two chunks may at most inflate the count."""

_TAIL = 65_536
"""Minimum number of characters to tokenise from the end of a text that will be truncated."""

_SLACK = 1024
"""Tokens at the start of such a tail that may be others than in the whole text, and are not used."""


class Tokenizer:
    """tokenizer.json of a bundle's directory. Immutable once made, so any thread may call it.

    `special_token_ids` are the control tokens, `eos_token_ids` those that end a sequence. `token_bytes` maps an id to its part
    of a text. `backend` is the library's own object.
    """

    def __init__(self, directory: Path, bundle: TextBundle) -> None:
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"no tokenizer can be read from {directory}: {error}") from error
        self.special_token_ids = frozenset(bundle.special_token_ids)
        self.eos_token_ids = frozenset(bundle.eos_token_ids)
        self._added = {token_id: token.content for token_id, token in self.backend.get_added_tokens_decoder().items()}
        self._token_texts: dict[int, str] = {}
        self._all_pieces: Pieces | None = None
        self._visible_pieces: Pieces | None = None
        self._piece_bytes = _piece_bytes(self.backend)
        if self._piece_bytes is not None:
            self._all_pieces = Pieces(self.backend, self._piece_bytes)
            self._visible_pieces = Pieces(self.backend, self._piece_bytes, hidden=self.special_token_ids)
        self.token_bytes = TokenBytes(self.token_text if self._all_pieces is None else self._all_pieces.__getitem__)

    def encode(self, text: str, *, add_special_tokens: bool = True, truncate: int | None = None) -> list[int]:
        """Return the ids of `text`, at most the last `truncate` of them.

        `add_special_tokens` puts a beginning-of-sequence token and the like around them where the model has such; it
        is for plain prompts, a rendered chat has its own. Raises `InvalidRequest` for text that is not Unicode.
        """
        try:
            if truncate is None:
                return self._encode(text, add_special_tokens)
            ids = self._encode_tail(text, truncate, add_special_tokens)
        except TypeError as error:  # how the library meets a lone surrogate, which JSON can write ("\ud800")
            raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
        return ids[max(len(ids) - truncate, 0) :]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= _SHORT:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            # The only one of the library's calls that releases the interpreter's lock, and it does not track offsets.
            ids = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _encode_tail(self, text: str, truncate: int, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`, or where it is long those of an end of it that has well over `truncate` tokens.

        The tail begins between two words where there are some, from where on tokens are those of the whole text.
        """
        length = max(_TAIL, 8 * truncate)
        while length < len(text):
            start = len(text) - length
            space = text.rfind(" ", start - _CHUNK if start > _CHUNK else 0, start)
            ids = self._encode(text[space if space > 0 else start :], add_special_tokens)
            if len(ids) >= truncate + _SLACK:
                return ids
            length *= 2
        return self._encode(text, add_special_tokens)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens included."""
        if len(token_ids) <= _SHORT:
            text: str = self.backend.decode(token_ids, skip_special_tokens=False)
        else:
            text = self.backend.decode_batch([token_ids], skip_special_tokens=False)[
                0
            ]  # releases the interpreter's lock
        return text

    def estimate_beyond(self, text: str, limit: int) -> int | None:
        """Return about how many tokens `text` has where it certainly has more than `limit`, else None.

        Takes the time and memory of about `limit` tokens at most, however long the text is.
        """
        if len(text) <= max(limit, _CHUNK):
            return None  # encoding it is no more work than this would be
        longest = self._longest_token
        certain = longest is not None and len(text) > limit * longest
        tokens = 0
        for start in range(0, len(text), _CHUNK):
            tokens += len(self.encode(text[start : start + _CHUNK], add_special_tokens=False)) - _CUT
            if tokens > limit or certain:
                return max(tokens * len(text) // min(start + _CHUNK, len(text)), limit + 1)
        return None

    @functools.cached_property
    def _longest_token(self) -> int | None:
        """Bytes, and so characters at most, that one token can stand for. None where that is not known.

        It is for byte-level BPE, where no step drops anything of a text.
        """
        backend = self.backend
        if self._piece_bytes is not _byte_level or backend.normalizer is not None or backend.truncation is not None:
            return None
        if backend.pre_tokenizer is not None and b"Removed" in backend.pre_tokenizer.__getstate__():
            return None
        if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
            return None  # each of them may stand for any number of spaces
        vocabulary = backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary)) if vocabulary.keys() >= _BYTE_OF_CHARACTER.keys() else None

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token, such as the end of a sequence."""
        return token_id in self.special_token_ids

    def token_text(self, token_id: int) -> str:
        """Return what `token_id` reads as in the middle of a text, its leading space kept.

        Bytes that are no whole characters are U+FFFD, an added token is its literal text, an unknown id is "".
        """
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self._decode_alone(token_id)
        return text

    def pieces(self, *, skip_special_tokens: bool) -> Pieces | None:
        """Return the table of what each id adds to a text; None where that depends on the ids around it."""
        return self._visible_pieces if skip_special_tokens else self._all_pieces

    def _decode_alone(self, token_id: int) -> str:
        if token_id in self._added:
            return self._added[token_id]
        if self._all_pieces is not None:
            piece = self._all_pieces[token_id]
            return piece if isinstance(piece, str) else piece.decode("utf-8", "replace")
        # Many decoders strip the space in front of the first token of a text: take the second one's text.
        once = self.backend.decode([token_id], skip_special_tokens=False)
        return self.backend.decode([token_id, token_id], skip_special_tokens=False)[len(once) :]


class Pieces(dict[int, "str | bytes"]):
    """What each id adds to a text: a str where its bytes are whole characters, else the bytes; "" for unknown ids.

    Filled as ids come up: a table of a whole vocabulary would take a worker tens of megabytes and most of a second.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, piece_bytes: PieceBytes, *, hidden: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(dict.fromkeys(hidden, ""))
        self._backend = backend
        self._piece_bytes = piece_bytes

    def __missing__(self, token_id: int) -> str | bytes:
        token = self._backend.id_to_token(token_id)
        data = b"" if token is None else self._piece_bytes(token)
        try:
            piece: str | bytes = data.decode()
        except UnicodeDecodeError:
            piece = data
        self[token_id] = piece
        return piece


class TokenBytes(dict[int, bytes]):
    """What each id, a control token's too, adds to a text, in UTF-8: half a character for some; b"" for unknown ids.

    The bytes of a text's tokens make up the text. Where a decoder lets neighbours change each other, these are the bytes of
    each token's text alone, and make up the text as far as those do. Filled as ids come up, as `Pieces` is.
    """

    def __init__(self, piece: Callable[[int], str | bytes]) -> None:
        super().__init__()
        self._piece = piece

    def __missing__(self, token_id: int) -> bytes:
        piece = self._piece(token_id)
        data = self[token_id] = piece.encode() if isinstance(piece, str) else piece
        return data


PieceBytes = Callable[[str], bytes]


def _piece_bytes(backend: tokenizers.Tokenizer) -> PieceBytes | None:
    """Return how the decoder of `backend` turns a token into bytes, None where a token's neighbours count too."""
    if backend.decoder is None:
        return None
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        # Strip takes the space off the start of a whole text; what is generated continues one, so it never applies.
        spaces = steps[0]["pattern"] == {"String": "▁"} and steps[0]["content"] == " "
        return _byte_fallback if spaces else None
    return None


_BYTE_OF_CHARACTER = {char: byte for byte, char in enumerate(byte_characters())}


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[char] for char in token])
    except KeyError:  # an added token, which is its literal text
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()
