"""Remembers to which engine of a model each request with an identity has gone, so that its repetitions go there too."""

from __future__ import annotations

import array
import contextlib
import os
from hashlib import blake2b
from pathlib import Path

from lmi_handlers.core.request import EncodedPrompt

_ENTRIES = 65_536
_DIGEST = 15
_ENTRY = _DIGEST + 1
"""Bytes of an entry: a digest of the request, and the number of its engine."""


class SentRequests:
    """A file that all web workers share. Raises `OSError` if there can be none.

    A request may take the entry of another one. If that is repeated, it may go to another engine, as if it were new.
    Requests that are still on their way when the file is closed find nothing.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def engine_of(self, identity: bytes, prompt: EncodedPrompt) -> int | None:
        """Return the number of the engine that has got this request, if that is known."""
        digest = _digest(identity, prompt)
        entry = b""
        with contextlib.suppress(ValueError):  # it is closed
            entry = os.pread(self._file.fileno(), _ENTRY, _place(digest))
        return entry[_DIGEST] if len(entry) == _ENTRY and entry.startswith(digest) else None

    def note(self, identity: bytes, prompt: EncodedPrompt, engine: int) -> None:
        """Remember the number of a request's engine. Nothing is remembered if the disk is full."""
        digest = _digest(identity, prompt)
        with contextlib.suppress(OSError, ValueError):
            os.pwrite(self._file.fileno(), digest + bytes([engine]), _place(digest))


def _digest(identity: bytes, prompt: EncodedPrompt) -> bytes:
    return blake2b(identity + array.array("I", prompt.token_ids).tobytes(), digest_size=_DIGEST).digest()


def _place(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % _ENTRIES * _ENTRY
