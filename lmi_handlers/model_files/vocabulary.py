"""Checks that a file with a tokenizer's vocabulary is whole: SentencePiece's and tiktoken's formats."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from lmi_handlers.core.errors import ConfigError

MAX_BYTES = 1 << 26
"""Known vocabularies have a tenth of it."""

_PIECES, _TRAINER = 1, 2
"""Fields of SentencePiece's `ModelProto`, in the order in which they are written."""
_LENGTH_DELIMITED = 2
MAX_TOKENS = 1 << 20
"""Known vocabularies have a quarter of it."""

_MAX_VARINT = 10
"""Bytes of a number in a protocol buffer."""

_LINE = 1 << 12
"""Bytes. A line is a token in base64, a space and its rank."""
_BEGINS = re.compile(rb"[A-Za-z0-9+/]+={0,2}(?: [0-9]*)?(?:\n|\Z)")
_RANKED = re.compile(rb"(?:[A-Za-z0-9+/=]{4})+ ([0-9]{1,9})")


def check_vocabulary(file: Path) -> str:
    """Return what is wrong with the file, or "". Files in other formats are not checked.

    Raises `ConfigError` for one that is too large to be a vocabulary.
    """
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ConfigError(f"{file} has {size} bytes, and a vocabulary may have {MAX_BYTES}")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        if memory[0] == _PIECES << 3 | _LENGTH_DELIMITED:
            return _sentencepiece(memory)
        return _tiktoken(memory[-_LINE:], size) if _BEGINS.match(memory[:_LINE]) else ""


def _sentencepiece(memory: mmap.mmap) -> str:
    """Walk over the fields of a `ModelProto`. The trainer's come after the tokens, and tell the kind of the model.

    Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
    """
    position, size, last = 0, len(memory), 0
    try:
        for _ in range(MAX_TOKENS):
            if position >= size:
                break
            key, position = _varint(memory, position)
            if key & 7 != _LENGTH_DELIMITED:
                return "is not a SentencePiece model"
            length, position = _varint(memory, position)
            position, last = position + length, max(last, key >> 3)
    except IndexError:
        return f"is cut off: it has {size} bytes, and ends within a number"
    if position < size:
        return f"is not a SentencePiece model: it has more than {MAX_TOKENS} tokens"
    if position > size:
        return f"is cut off: it has {size} bytes, and needs {position}"
    return "" if last >= _TRAINER else f"is cut off: it has {size} bytes, and nothing follows its tokens"


def _varint(memory: mmap.mmap, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it. Raises `IndexError`."""
    value = 0
    for index in range(_MAX_VARINT):
        byte = memory[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise IndexError("a number is too long")


def _tiktoken(tail: bytes, size: int) -> str:
    """Check the last line. Ranks rise, so one that has lost digits is seen.

    Source: `load_tiktoken_bpe` in https://github.com/openai/tiktoken/blob/main/tiktoken/load.py
    """
    *others, line = tail.removesuffix(b"\n").split(b"\n")
    found, before = _RANKED.fullmatch(line), _RANKED.fullmatch(others[-1]) if len(others) > 1 else None
    is_whole = found is not None and (before is None or int(found[1]) > int(before[1]))
    return "" if is_whole else f"is cut off: it has {size} bytes, and its last line is not a token and its rank"
