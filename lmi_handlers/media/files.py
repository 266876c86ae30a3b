"""Reads files that requests name by a URL, and how many of them a request may have."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec

from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.media.allowed import AllowedMedia
from lmi_handlers.media.fetcher import fetch, too_large

DEFAULT_MAX_FILES = 16
"""Of each kind, per request."""

FETCH_TIMEOUT = 10.0
"""Seconds to fetch all files of one kind of one request."""

_BASE64_CHUNK = 1 << 16
"""Characters decoded at a time, which takes half a millisecond. Must be a multiple of 4."""


class FileReader:
    """Reads files of one kind from `data:` URLs and from the hosts that the operator allows. Thread-safe.

    `accept` is the kind's media type, for hosts, and `option` names the option that limits their bytes.
    """

    def __init__(self, allowed: AllowedMedia, *, accept: str, option: str) -> None:
        self._allowed = allowed
        self._accept = accept
        self._option = option

    def read(self, url: str, max_bytes: int, deadline: float) -> bytes:
        """Return the file. `deadline` is a time on the monotonic clock. Raises `InvalidRequest`."""
        if url[:5].lower() == "data:":
            return decode_data_url(url, max_bytes, self._option)
        location = self._allowed.locate(url)
        addresses = self._allowed.resolve(location)
        return fetch(
            location, addresses, max_bytes=max_bytes, deadline=deadline, accept=self._accept, option=self._option
        )


def decode_data_url(url: str, max_bytes: int, option: str) -> bytes:
    """Return the content of a `data:..;base64,..` URL (RFC 2397). Lets other requests run after each chunk.

    Raises `InvalidRequest` if the URL is not valid or the content is longer than `max_bytes`, which `option` sets.
    """
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("is a data: URL without ;base64,")
    if len(text) // 4 * 3 > max_bytes + 2:
        raise too_large(max_bytes, option)
    pieces = []
    for start in range(0, len(text), _BASE64_CHUNK):
        try:
            piece = base64.b64decode(text[start : start + _BASE64_CHUNK], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"is not base64: {error}") from error
        if len(piece) < _BASE64_CHUNK // 4 * 3 and start + _BASE64_CHUNK < len(text):
            raise InvalidRequest("is not base64: there is text after the padding")
        pieces.append(piece)
        give_way()
    return b"".join(pieces)


def max_images(option: str | None) -> int:
    """Return the maximum number of images per prompt from vLLM's JSON: `{"image": 4}` or `{"image": {"count": 4, ..}}`.

    Raises `ConfigError` if the JSON is not valid.
    """
    return _count(_limits(option).image)


def max_sounds(option: str | None) -> int:
    """Return the maximum number of sounds per prompt, as `max_images` does for its JSON's `audio`."""
    return _count(_limits(option).audio)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Limit(msgspec.Struct):
    count: _Count = DEFAULT_MAX_FILES


class _Limits(msgspec.Struct):
    image: _Count | _Limit = DEFAULT_MAX_FILES
    audio: _Count | _Limit = DEFAULT_MAX_FILES


def _limits(option: str | None) -> _Limits:
    if option is None:
        return _Limits()
    try:
        return msgspec.json.decode(option, type=_Limits)
    except msgspec.DecodeError as error:
        raise ConfigError(f'option.limit_mm_per_prompt={option} is not JSON such as {{"image": 4}}') from error


def _count(limit: int | _Limit) -> int:
    return limit.count if isinstance(limit, _Limit) else limit
