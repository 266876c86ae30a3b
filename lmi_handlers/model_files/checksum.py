"""Checksums that S3 keeps of an object.

Of the whole object, or of its parts as they were uploaded: then the checksum is one of the parts' checksums.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

try:
    from awscrt import checksums as crt
except ImportError:
    crt = None


class Hash(Protocol):
    """The hash objects of `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...


class _Crc:
    """A CRC as a `Hash`. `crc` returns the CRC of some data that follows data with the CRC in its second argument."""

    def __init__(self, crc: Callable[[bytes | memoryview, int], int], size: int) -> None:
        self._crc = crc
        self._size = size
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        self._value = self._crc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


MD5 = "MD5"

HASHES: dict[str, Callable[[], Hash]] = {
    "CRC32": lambda: _Crc(zlib.crc32, 4),
    "SHA1": lambda: hashlib.sha1(usedforsecurity=False),
    "SHA256": hashlib.sha256,
    "SHA512": hashlib.sha512,
    MD5: lambda: hashlib.md5(usedforsecurity=False),
}
"""Those that can be computed here, the fastest ones first. Without awscrt, the other CRCs would take minutes."""
if crt is not None:
    HASHES = {"CRC64NVME": lambda: _Crc(crt.crc64nvme, 8), "CRC32C": lambda: _Crc(crt.crc32c, 4)} | HASHES


class Checksum(msgspec.Struct, frozen=True):
    """The checksum that an object must have. `part_size` is None for a checksum of the whole object, else in bytes."""

    algorithm: str
    digest: bytes
    part_size: int | None = None

    @classmethod
    def of_base64(cls, algorithm: str, text: str, part_size: int | None = None) -> Checksum | None:
        """Read a value such as `hUn1dA==` or, for parts, `hUn1dA==-3`. None if it is not base64."""
        try:
            return cls(algorithm, base64.b64decode(text.partition("-")[0], validate=True), part_size)
        except ValueError:
            return None


class Digest:
    """Computes a checksum of the bytes that it is given, in their order."""

    def __init__(self, expected: Checksum) -> None:
        self._expected = expected
        self._new = HASHES[expected.algorithm]
        self._hash = self._new()
        self._parts: list[bytes] = []
        self._room = expected.part_size

    def update(self, data: bytes | memoryview) -> None:
        while self._room is not None and len(data) >= self._room:
            self._hash.update(data[: self._room])
            data = data[self._room :]
            self._end_part()
        self._hash.update(data)
        if self._room is not None:
            self._room -= len(data)

    def matches(self) -> bool:
        """Tell whether the bytes so far are the object. Must be called once."""
        if self._room is None:
            return self._hash.digest() == self._expected.digest
        if self._room < (self._expected.part_size or 0):
            self._end_part()
        whole = self._new()
        whole.update(b"".join(self._parts))
        return whole.digest() == self._expected.digest

    def _end_part(self) -> None:
        self._parts.append(self._hash.digest())
        self._hash, self._room = self._new(), self._expected.part_size
