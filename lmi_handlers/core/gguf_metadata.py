"""Checks of the values in a GGUF file's metadata: the reader takes any type under any key.

Names and types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MAX_TOKEN = 2048
"""Characters of a token. Known vocabularies have up to 256, in runs of spaces."""

_MAX_SPLITS = 10**9
"""Characters that are looked at to find out how SentencePiece's tokens are put together."""

_MAX_ALIGNMENT = 2**20
_MAX_NAME = 100


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise `ValueError`, with the key, if a value that is read anywhere has another type than its key says."""
    for key, (is_right, what) in _KINDS.items():
        if key in metadata and not is_right(metadata[key]):
            raise ValueError(f"{key} must be {what}, got {_described(metadata[key])}")
    architecture = metadata.get("general.architecture", "")
    for name, (is_right, what) in _OF_ARCHITECTURE.items():
        key = f"{architecture}.{name}"
        if key in metadata and not is_right(metadata[key]):
            raise ValueError(f"{key} must be {what}, got {_described(metadata[key])}")
    for key, value in metadata.items():
        if key.startswith("tokenizer.chat_template.") and not isinstance(value, str):
            raise ValueError(f"{key[:100]!r} must be a text, got {_described(value)}")
    _check_tokens(metadata)


def _check_tokens(metadata: Mapping[str, Any]) -> None:
    tokens: Sequence[str] = metadata.get("tokenizer.ggml.tokens", ())
    lengths = [len(token) for token in tokens]
    if (longest := max(lengths, default=0)) > _MAX_TOKEN:
        raise ValueError(f"a token has {longest} characters, and may have {_MAX_TOKEN}")
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is not None and len(scores) < len(tokens):
        raise ValueError(f"tokenizer.ggml.scores has {len(scores)} values for {len(tokens)} tokens")
    if scores is not None and sum(length * length for length in lengths) > _MAX_SPLITS:
        raise ValueError("its tokens are too long to be put together")
    for key in _TOKEN_IDS:
        token_id = metadata.get(key)
        if token_id is not None and token_id >= len(tokens):
            raise ValueError(f"{key} must be below the number of tokens, {len(tokens)}, got {token_id}")


def _described(value: Any) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, list | tuple):
        return f"an array of {len(value)} values"
    return "a text" if isinstance(value, str) else repr(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME and value.isprintable()


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_alignment(value: Any) -> bool:
    return _is_count(value) and 0 < value <= _MAX_ALIGNMENT


def _are_counts(value: Any) -> bool:
    """Tell whether this is one number for all layers, or one for each."""
    return _is_count(value) or (isinstance(value, tuple | list) and bool(value) and all(map(_is_count, value)))


def _are_integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(item) is int for item in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(item) in (int, float) for item in value)


_Kind = tuple[Callable[[Any], bool], str]
_TEXT: _Kind = (_is_text, "a text")
_NAME: _Kind = (_is_name, f"a text of up to {_MAX_NAME} printable characters")
_TEXTS: _Kind = (_are_texts, "an array of texts")
_BOOL: _Kind = (_is_bool, "true or false")
_COUNT: _Kind = (_is_count, "a whole number below 2**31")
_COUNTS: _Kind = (_are_counts, "a whole number below 2**31, or one per layer")

_TOKEN_IDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "unknown", "padding"))
_KINDS: Mapping[str, _Kind] = {
    "general.architecture": _NAME,
    "general.alignment": (_is_alignment, f"a number from 1 to {_MAX_ALIGNMENT}"),
    "tokenizer.ggml.model": _NAME,
    "tokenizer.ggml.pre": _NAME,
    "tokenizer.ggml.tokens": _TEXTS,
    "tokenizer.ggml.token_type": (_are_integers, "an array of whole numbers"),
    "tokenizer.ggml.merges": _TEXTS,
    "tokenizer.ggml.scores": (_are_numbers, "an array of numbers"),
    "tokenizer.ggml.add_bos_token": _BOOL,
    "tokenizer.ggml.add_space_prefix": _BOOL,
    "tokenizer.chat_template": _TEXT,
    **dict.fromkeys(_TOKEN_IDS, _COUNT),
}
_OF_ARCHITECTURE: Mapping[str, _Kind] = {
    **dict.fromkeys(("context_length", "block_count", "embedding_length"), _COUNT),
    **dict.fromkeys(
        ("attention.head_count", "attention.head_count_kv", "attention.key_length", "feed_forward_length"), _COUNTS
    ),
}
"""Keys after the name of the architecture."""
