"""Signs in a request of the replica that should answer it: its session, or a key of model or adapter, salt and prompt.

A key is only a hint, so bodies are not parsed: their first bytes are searched. A wrong key costs a cache, not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qs

By = Literal["least", "model", "prefix"]
"""The basis of routing: nothing, the model or adapter, or that and the beginning of the prompt."""

HEAD = 8192
"""Number of bytes of a body that are searched."""

_PREFIX = 1024
"""Prompts whose first bytes, up to this number, are equal have the same key. Shorter prompts have none."""

_MAX_NAME = 256
_IN_PATH = re.compile(r"/(?:predictions/([^/]+)|models/([^/]+)(?:/[^/]+)?/invoke)")
_IN_QUERY = ("model_name", "adapter")
_IN_HEADERS = (b"x-amzn-sagemaker-adapter-identifier", b"x-amzn-sagemaker-target-model")
_IN_BODY = re.compile(rb'"(?:model|adapters)"\s*:\s*\[?\s*"([^"\\]{1,256})"')
_SESSION_HEADER = b"x-amzn-sagemaker-session-id"
_SESSION_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-([0-9a-z]{1,64})")
"""`<uuid>-<replica>`: the name of the replica that has the session."""

_SALT = re.compile(rb'"cache_salt"\s*:\s*"([^"\\]{1,256})"')
_PROMPT = re.compile(rb'"(?:messages|prompt|inputs|input|text)"\s*:\s*')


def key_of(by: By, model: bytes, head: bytes) -> bytes | None:
    """Return the key of a request for `model`, b"" for the default, whose body begins with `head`. None if it has none."""
    if by == "prefix" and (found := _PROMPT.search(head)):
        prompt = head[found.end() : found.end() + _PREFIX]
        if len(prompt) == _PREFIX:
            salt = _SALT.search(head)  # prompts with different salts share no cache anyway
            return b"\0".join((model, salt[1] if salt else b"", prompt))
    return model or None


def model_of(path: str, query: str, headers: Mapping[bytes, bytes], head: bytes) -> bytes:
    """Return the model or adapter that a request names, b"" if it names none.

    `path` is what `path_of` returns. Header names are in lower case.
    """
    if found := _IN_PATH.fullmatch(path):
        return str(found[1] or found[2]).encode("latin-1")[:_MAX_NAME]
    if "model_name=" in query or "adapter=" in query:
        fields = parse_qs(query[:4096])
        for name in _IN_QUERY:
            if name in fields:
                return fields[name][0].encode()[:_MAX_NAME]
    for header in _IN_HEADERS:
        if given := headers.get(header):
            return given.removesuffix(b".tar.gz")[:_MAX_NAME]
    return match[1] if (match := _IN_BODY.search(head)) else b""


def holder(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the name of the replica with the request's session, None if it has none, or one that says no name."""
    found = _SESSION_ID.fullmatch(headers.get(_SESSION_HEADER, b""))
    return found[1].decode() if found else None
