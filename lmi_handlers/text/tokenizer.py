"""A model's tokenizer as used by web workers: encodes text, and knows the text of each id."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import tokenizers

from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.text.bundle import TOKENIZER_FILE, TextBundle
from lmi_handlers.text.byte_level import byte_characters
from lmi_handlers.text.infill import find_infill

_SHORT = 1024
"""Up to this length (characters for encoding, ids for decoding), the library's single call is faster than a batch."""

_CHUNK = 32_768
_CUT = 16
"""Maximum number of extra tokens that a cut between two chunks can cause."""

_TAIL = 65_536
"""Minimum number of characters to encode at the end of a text that will be truncated."""

_UNLIMITED = 1 << 40

_SLACK = 1024
"""Tokens at the start of this tail that are not used, because they may differ from those of the whole text."""


class Tokenizer:
    """The tokenizer.json of a text bundle. Thread-safe.

    `special_token_ids` are the control tokens. `eos_token_ids` are the tokens that end a sequence. `token_bytes` maps
    an id to the bytes that it adds to a text. `backend` is the tokenizer object of the `tokenizers` library.
    """

    def __init__(self, directory: Path, bundle: TextBundle) -> None:
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"no tokenizer can be read from {directory}: {error}") from error
        self.special_token_ids = frozenset(bundle.special_token_ids)
        self.eos_token_ids = frozenset(bundle.eos_token_ids)
        self._added = {token_id: token.content for token_id, token in self.backend.get_added_tokens_decoder().items()}
        self._added_ids = {text: token_id for token_id, text in self._added.items()}
        self.infill = find_infill(self._added_ids)
        """The marks with which the model fills in the middle of a text, if its tokenizer tells."""
        self._token_texts: dict[int, str] = {}
        self._all_pieces: Pieces | None = None
        self._visible_pieces: Pieces | None = None
        self._piece_bytes = _piece_bytes(self.backend)
        if self._piece_bytes is not None:
            self._all_pieces = Pieces(self.backend, self._piece_bytes)
            self._visible_pieces = Pieces(self.backend, self._piece_bytes, hidden=self.special_token_ids)
        self.token_bytes = TokenBytes(self.token_text if self._all_pieces is None else self._all_pieces.__getitem__)

    def encode(self, text: str, *, add_special_tokens: bool = True, truncate: int | None = None) -> list[int]:
        """Return the ids of `text`. With `truncate`, return only the last `truncate` ids.

        `add_special_tokens` adds the model's special tokens, such as a beginning-of-sequence token. Use it for plain
        prompts only, because a rendered chat already has them. Raises `InvalidRequest` if the text is not valid
        Unicode.
        """
        try:
            if truncate is None:
                return self._encode(text, add_special_tokens)
            ids = self._encode_tail(text, truncate, add_special_tokens)
        except TypeError as error:  # the library's error for a lone surrogate, which JSON can contain ("\ud800")
            raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
        return ids[max(len(ids) - truncate, 0) :]

    def encode_within(self, text: str, limit: int, side: Literal["left", "right"]) -> list[int]:
        """Return at most `limit` ids of `text`. If there are more, those on one `side` of the text are removed.

        Unlike `encode`, it keeps all special tokens that the model adds. A model that embeds texts needs them. Raises
        `InvalidRequest` if the text is not valid Unicode.
        """
        encoding = self._outer_part(text, limit, side)
        encoding.truncate(max(limit - self.backend.num_special_tokens_to_add(is_pair=False), 0), direction=side)
        ids: list[int] = self.backend.post_process(encoding).ids
        return ids

    def encode_pair(
        self, first: str, second: str, *, truncate: int | None = None, side: Literal["left", "right"] = "right"
    ) -> tuple[list[int], list[int]]:
        """Return the ids of two texts with the model's special tokens, and the text that each belongs to: 0 or 1.

        With `truncate`, return at most that many ids: tokens on one `side` of the longer text are removed, then of both.
        Raises `InvalidRequest` if a text is not valid Unicode.
        """
        most = _UNLIMITED if truncate is None else truncate
        one, two = self._outer_part(first, most, side), self._outer_part(second, most, side)
        room = max(most - self.backend.num_special_tokens_to_add(is_pair=True), 0)
        kept = pair_lengths(len(one.ids), len(two.ids), room)
        one.truncate(kept[0], direction=side)
        two.truncate(kept[1], direction=side)
        encoding = self.backend.post_process(one, two)
        return encoding.ids, encoding.type_ids

    def _outer_part(self, text: str, limit: int, side: Literal["left", "right"]) -> tokenizers.Encoding:
        """Return the encoding of `text` without special tokens, or that of well over `limit` tokens of it.

        The tokens on one `side` of a longer text are left out. Raises `InvalidRequest` if it is not valid Unicode.
        """
        length = max(_TAIL, 8 * limit)
        while True:
            part = text[-length:] if side == "left" else text[:length]
            try:
                encoding = self.backend.encode_batch_fast([part], add_special_tokens=False)[0]
            except TypeError as error:  # a lone surrogate
                raise InvalidRequest("must be valid Unicode text, without lone surrogates", field="inputs") from error
            if length >= len(text) or len(encoding.ids) >= limit + _SLACK:
                return encoding
            length *= 2

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= _SHORT:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            # Batch calls release the GIL, and this one saves time by not tracking offsets.
            ids = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _encode_tail(self, text: str, truncate: int, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`. If it is long, encode only a tail of it that has well over `truncate` tokens.

        If possible, the tail starts between two words, because from there on its tokens match those of the whole text.
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
            text = self.backend.decode_batch([token_ids], skip_special_tokens=False)[0]  # releases the GIL
        return text

    def estimate_beyond(self, text: str, limit: int) -> int | None:
        """Estimate the number of tokens in `text` if it certainly has more than `limit`. Otherwise return None.

        Takes at most about the time and memory of encoding `limit` tokens, however long the text is.
        """
        if len(text) <= max(limit, _CHUNK):
            return None  # simply encoding the text takes no longer
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
        """The maximum number of bytes, and so of characters, that one token can stand for, or None if unknown.

        It is known only for byte-level BPE if no step of the tokenizer drops any text.
        """
        backend = self.backend
        if self._piece_bytes is not _byte_level or backend.normalizer is not None or backend.truncation is not None:
            return None
        if backend.pre_tokenizer is not None and b"Removed" in backend.pre_tokenizer.__getstate__():
            return None
        if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
            return None  # such a token absorbs any number of spaces
        vocabulary = backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary)) if vocabulary.keys() >= _BYTE_OF_CHARACTER.keys() else None

    def added_ids(self, tokens: Iterable[str]) -> tuple[int, ...]:
        """Return the ids of added tokens. Raises `KeyError` for others."""
        return tuple(self._added_ids[token] for token in tokens)

    def is_special(self, token_id: int) -> bool:
        """True if this is a control token, such as an end-of-sequence token."""
        return token_id in self.special_token_ids

    def token_text(self, token_id: int) -> str:
        """Return the text of `token_id` as in the middle of a text, with its leading space.

        Incomplete characters become U+FFFD, an added token is its literal text, and an unknown id is "".
        """
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self._decode_alone(token_id)
        return text

    def pieces(self, *, skip_special_tokens: bool) -> Pieces | None:
        """Return the table of what each id adds to a text, or None if that depends on the neighbouring ids."""
        return self._visible_pieces if skip_special_tokens else self._all_pieces

    def _decode_alone(self, token_id: int) -> str:
        if token_id in self._added:
            return self._added[token_id]
        if self._all_pieces is not None:
            piece = self._all_pieces[token_id]
            return piece if isinstance(piece, str) else piece.decode("utf-8", "replace")
        # Many decoders strip the space before the first token of a text, so decode the token twice and take the second.
        once = self.backend.decode([token_id], skip_special_tokens=False)
        return self.backend.decode([token_id, token_id], skip_special_tokens=False)[len(once) :]


def pair_lengths(first: int, second: int, limit: int) -> tuple[int, int]:
    """Return how many tokens to keep of two texts, at most `limit` in all. The longer one loses tokens first.

    The same as the strategy `longest_first` of the `tokenizers` library, which needs a tokenizer of its own per limit.
    """
    if first + second <= limit:
        return first, second
    half = limit // 2
    if first <= second:
        return (first, limit - first) if first <= half else (half, limit - half)
    return (limit - second, second) if second <= half else (limit - half, half)


class Pieces(dict[int, "str | bytes"]):
    """The addition of each id to a text: a str if its bytes are whole characters, otherwise the bytes. Unknown ids map to "".

    Filled on demand, because a table of the whole vocabulary would cost each worker tens of megabytes and most of a
    second.
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
    """The UTF-8 bytes that each id adds to a text, control tokens included. Unknown ids map to b"".

    The bytes may be part of a character. Joined, the bytes of all tokens are the bytes of the text. With decoders in
    which neighbouring tokens affect each other this is only approximate, because each token is decoded alone. Filled on
    demand.
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
    """Return the function that turns a token into bytes, or None if the decoder also looks at neighbouring tokens."""
    if backend.decoder is None:
        return None
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        # Strip only removes the space at the start of a text. Generated text continues a prompt, so it never applies.
        spaces = steps[0]["pattern"] == {"String": "▁"} and steps[0]["content"] == " "
        return _byte_fallback if spaces else None
    return None


_BYTE_OF_CHARACTER = {char: byte for byte, char in enumerate(byte_characters())}


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[char] for char in token])
    except KeyError:  # an added token stands for its literal text
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()
