"""A model's tokenizer as web workers use it: text to ids, and what each id stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from lmi_handlers.errors import ConfigError, InvalidRequest
from lmi_handlers.text.bundle import TOKENIZER_FILE, TextBundle, byte_characters

_CHUNK = 32_768
_CUT = 16
"""Tokens by which a cut between two chunks may at most inflate the count."""


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
        if (piece_bytes := _piece_bytes(self.backend)) is not None:
            self._all_pieces = Pieces(self.backend, piece_bytes)
            self._visible_pieces = Pieces(self.backend, piece_bytes, hidden=self.special_token_ids)
        self.token_bytes = TokenBytes(self.token_text if self._all_pieces is None else self._all_pieces.__getitem__)

    def encode(self, text: str, *, add_special_tokens: bool = True, truncate: int | None = None) -> list[int]:
        """Return the ids of `text`, at most the last `truncate` of them.

        `add_special_tokens` puts a beginning-of-sequence token and the like around them where the model has such; it
        is for plain prompts, a rendered chat has its own. Raises `InvalidRequest` for text that is not Unicode.
        """
        try:
            ids = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # how the library meets a lone surrogate, which JSON can write ("\ud800")
            raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
        return ids if truncate is None else ids[max(len(ids) - truncate, 0) :]

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens included."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=False)
        return text

    def estimate_beyond(self, text: str, limit: int) -> int | None:
        """Return about how many tokens `text` has where it is far longer than `limit`, judged by its beginning, else None.

        None says nothing: it takes an `encode` to know. A client must not keep a web worker busy with megabytes.
        """
        tokens = 0
        for start in range(0, len(text), _CHUNK):
            tokens += len(self.encode(text[start : start + _CHUNK], add_special_tokens=False)) - _CUT
            if tokens > limit:
                return tokens * len(text) // min(start + _CHUNK, len(text))
        return None

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
