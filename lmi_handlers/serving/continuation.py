"""Continuation tokens: a request with one continues an answer that a time limit has ended.

The server keeps nothing. A token has all that another replica, or the server after a restart, has to know:

    signature | version and expiry | digests of model, adapter, prompt and sampling parameters | the generated tokens

The generated tokens' ids are split into planes of bytes and deflated, which takes about two bytes per token. The signature
also covers whose it is, so a token is of no use with another client's API key. A token is not encrypted:
it only has what its client has been sent.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import struct
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from lmi_handlers.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner

FIELD = "continuation"
"""The field of a body with a token, and that of an answer."""

ATTRIBUTE = "x-lmi-continuation"
"""The custom attribute with a token."""

KEY_VARIABLE = "LMI_CONTINUATION_KEY"

MAX_LENGTH = 1 << 22
"""Maximum length of a token in characters."""

MAX_GENERATED = 1 << 19
"""Maximum number of generated tokens. Even if they do not get smaller, the token is shorter than `MAX_LENGTH`."""

_MIN_KEY = 32  # characters
_KEY_FILE = "continuation.key"
_VERSION = 1
_SIGNATURE = 16
_HEAD = struct.Struct(">BQ8s8s16s8s")
_ID_BYTES = 4


class Fixed(NamedTuple):
    """Digests of what may not change between the parts of an answer."""

    model: bytes
    adapter: bytes
    prompt: bytes
    sampling: bytes

    @classmethod
    def of(cls, model: str, prompt: EncodedPrompt, params: SamplingParams) -> Fixed:
        """Digest a request. `model` is a text that changes with the model's name, its tokenizer and its weights."""
        return cls(
            model_digest(model),
            _digest(msgspec.msgpack.encode((prompt.adapter, prompt.adapter_digest))),
            _prompt_digest(prompt),
            _sampling_digest(params),
        )


class Opened(NamedTuple):
    """The content of a token: the generated tokens, at least one, and what may not change."""

    generated: tuple[int, ...]
    fixed: Fixed

    def check_model(self, model: str) -> None:
        """Raise `InvalidRequest` if it is another model's."""
        if self.fixed.model != model_digest(model):
            raise InvalidRequest(f"the continuation is for another model{_REPEAT}", code="continuation_of_other_model")

    def check(self, fixed: Fixed, *, has_prompt: bool = True) -> None:
        """Raise `InvalidRequest` if the request with the token is another one than the token is from, for the same model.

        Without `has_prompt`, nothing is known of the request's prompt.
        """
        if self.fixed.adapter != fixed.adapter:
            raise InvalidRequest(
                f"the continuation is for another adapter{_REPEAT}", code="continuation_of_other_adapter"
            )
        if has_prompt and self.fixed.prompt != fixed.prompt:
            raise InvalidRequest(
                f"the continuation is for another prompt{_REPEAT}", code="continuation_of_other_prompt"
            )
        if self.fixed.sampling != fixed.sampling:
            raise InvalidRequest(
                f"the continuation is for other sampling parameters{_REPEAT}", code="continuation_of_other_sampling"
            )


class Continuations:
    """Issues tokens that expire after `seconds`, and opens them. With `seconds` 0, there are none.

    Without a `key`, no token is valid.
    """

    def __init__(self, key: bytes | None, seconds: int) -> None:
        self._key = key
        self._seconds = seconds

    @property
    def issues(self) -> bool:
        """True if answers get tokens."""
        return self._key is not None and self._seconds > 0

    def seal(self, generated: Sequence[int], fixed: Fixed, owner: Owner) -> str | None:
        """Return the token for an answer, or None if it is too long."""
        if len(generated) > MAX_GENERATED:
            return None
        ids = array("I", generated).tobytes()
        planes = b"".join(ids[place::_ID_BYTES] for place in range(_ID_BYTES))
        content = _HEAD.pack(_VERSION, int(time.time()) + self._seconds, *fixed) + zlib.compress(planes)
        sealed = self._signature(content, owner) + content
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, token: str, owner: Owner) -> Opened:
        """Return the content of a token.

        Raises `InvalidRequest` if it has expired, or is not one that was issued to this client by this server or another one
        with the same key, and `UnsupportedFeature` if answers cannot be continued.
        """
        if not self._seconds:
            raise UnsupportedFeature(
                "answers are not continued (option.continuation_seconds=0)", code="continuation_disabled"
            )
        try:
            sealed = _decoded(token)
        except ValueError:
            raise _invalid() from None
        signature, content = sealed[:_SIGNATURE], sealed[_SIGNATURE:]
        if self._key is None or not hmac.compare_digest(signature, self._signature(content, owner)):
            raise _invalid()
        version, expiry, *digests = _HEAD.unpack_from(content)
        if version != _VERSION:
            raise _invalid()
        if time.time() >= expiry:
            raise InvalidRequest("the continuation has expired: begin again", code="continuation_expired")
        return Opened(_ids(content[_HEAD.size :]), Fixed(*digests))

    def _signature(self, content: bytes, owner: Owner) -> bytes:
        return hmac.digest(self._key or b"", msgspec.msgpack.encode(owner) + content, "sha256")[:_SIGNATURE]


def given_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the key that the servers of this model share, or None if none is given. Raises `ConfigError`."""
    text = environ.get(KEY_VARIABLE, "").strip()
    if not text:
        return None
    if len(text) < _MIN_KEY:
        raise ConfigError(f"{KEY_VARIABLE} has {len(text)} characters: must have at least {_MIN_KEY}, chosen at random")
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def own_key(runtime_dir: Path) -> bytes:
    """Return the random key of this server, which its web workers share. Raises `OSError`."""
    descriptor = os.open(runtime_dir / _KEY_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        key = file.read()
        if not key:
            key = os.urandom(32)
            file.write(key)
        return key


def model_digest(model: str) -> bytes:
    """Return the digest of a model's name, tokenizer and weights."""
    return _digest(model.encode())


def _digest(data: bytes, size: int = 8) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()


def _prompt_digest(prompt: EncodedPrompt) -> bytes:
    digest = hashlib.blake2b(array("I", prompt.token_ids).tobytes(), digest_size=16)
    if (media := prompt.media_prompt) is not None:
        for data in (*(image.data for image in media.images), *(sound.data for sound in media.sounds)):
            digest.update(_digest(data, 16))
    if prompt.cache_salt is not None:
        digest.update(_digest(prompt.cache_salt.encode(), 16))
    return digest.digest()


def _sampling_digest(params: SamplingParams) -> bytes:
    biases = None if params.logit_bias is None else dict(sorted(params.logit_bias.items()))
    chosen = msgspec.structs.replace(params, logit_bias=biases, **dict.fromkeys(_WITHOUT_EFFECT))
    return _digest(msgspec.json.encode(chosen))


def _decoded(token: str) -> bytes:
    """Return the bytes of a token that may be one. Raises `ValueError`."""
    if len(token) > MAX_LENGTH:
        raise ValueError
    data = token.encode("ascii")
    sealed = base64.b64decode(data + b"=" * (-len(data) % 4), b"-_", validate=True)
    if len(sealed) < _SIGNATURE + _HEAD.size:
        raise ValueError
    return sealed


def _ids(compressed: bytes) -> tuple[int, ...]:
    """Return the ids in a token whose signature is valid."""
    planes = zlib.decompressobj().decompress(compressed, _ID_BYTES * MAX_GENERATED)
    size = len(planes) // _ID_BYTES
    data = bytearray(len(planes))
    for place in range(_ID_BYTES):
        data[place::_ID_BYTES] = planes[place * size : (place + 1) * size]
    return tuple(array("I", bytes(data)))


def _invalid() -> InvalidRequest:
    return InvalidRequest(
        "the continuation is not valid: it was changed, is another client's, or was issued by a server with another "
        f"key ({KEY_VARIABLE})",
        code="invalid_continuation",
    )


_REPEAT = ": repeat the request as it was"

_WITHOUT_EFFECT = ("logprobs", "prompt_logprobs", "prompt_lookup_num_tokens")
"""Fields of `SamplingParams` that do not change the text."""
