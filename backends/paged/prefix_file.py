"""A file of blocks of the KV cache, which stays when the engine ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import stat
import struct
from collections import OrderedDict
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_SLOTS = 65_536
"""All of their heads are read when the file is opened."""

IDENTITY_BYTES = 32

_MAGIC = b"LMI-KV\r\n"
_VERSION = 1
_HEADER = struct.Struct(f"<8sIQ{IDENTITY_BYTES}s32s16s")
"""Magic, version, bytes of a block, what computed the blocks, a secret for digests, and the checksum of all before it."""
_HEAD = struct.Struct("<16sQ16s")
"""Of a slot: the block's digest, when it was last used, and the checksum of its digest and its content."""
_NO_DIGEST = bytes(16)
_SHARE_OF_DISK = 0.9
"""Of the free space. The rest is for whatever else writes to that disk."""


class Unusable(Exception):
    """The file is not used. The message says why."""


class PrefixFile:
    """Blocks of `block_bytes` bytes each, by the digests of their tokens. The blocks that were used last stay.

    The file is ours alone: it belongs to this user, nobody else may open it, and one engine uses it at a time. It takes
    at most `max_bytes`, and at most nine tenths of what is free on its disk. A file of other blocks, which `identity`
    (`IDENTITY_BYTES` long) tells apart, or one whose header is damaged, is started anew. A damaged block is forgotten when
    it is read. Nothing is executed: a block is a row of bytes with a checksum.

    `secret` is the key of the digests of tokens. Without it, nobody can construct two texts with the same digest.
    Except for `in`, only one thread may use it at a time.
    """

    def __init__(self, path: Path, *, identity: bytes, block_bytes: int, max_bytes: int) -> None:
        """Open or make the file. Raises `Unusable`."""
        self._block_bytes = block_bytes
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # the block used last is at the end
        self._free: list[int] = []
        self._clock = 0
        self._reported = False
        try:
            self._file = _open(path)
            try:
                size = os.fstat(self._file).st_size
                room = min(max_bytes, size + int(shutil.disk_usage(path.parent).free * _SHARE_OF_DISK))
                self._num_slots = min(MAX_SLOTS, (room - _HEADER.size) // (_HEAD.size + block_bytes))
                if self._num_slots < 1:
                    raise Unusable(f"a block takes {_HEAD.size + block_bytes:,} bytes, and it may have {room:,}")
                self.secret = self._start(identity) if size == 0 else self._read_header(path, identity)
                self._read_heads()
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise Unusable(error.strerror or str(error)) from error

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def read(self, digest: bytes) -> bytes | None:
        """Return the block, or None if it is not there or damaged. Raises `OSError`."""
        slot = self._slots.get(digest)
        if slot is None:
            return None
        data = os.pread(self._file, _HEAD.size + self._block_bytes, self._start_of(slot))
        block = data[_HEAD.size :]
        if len(block) == self._block_bytes:
            found, _, checksum = _HEAD.unpack_from(data)
            if found == digest and checksum == self._checksum(digest, block):
                with contextlib.suppress(OSError):  # the block is there, even if nothing can be written
                    self.use(digest)
                return block
        del self._slots[digest]
        self._free.append(slot)
        if not self._reported:
            self._reported = True
            logger.warning("a block of the prefix cache file is damaged; it is computed again")
        return None

    def use(self, digest: bytes) -> None:
        """Let a block that is there count as used last. Raises `OSError`."""
        slot = self._slots.get(digest)
        if slot is not None:
            self._slots.move_to_end(digest)
            self._clock += 1
            os.pwrite(self._file, struct.pack("<Q", self._clock), self._start_of(slot) + len(digest))

    def write(self, digest: bytes, block: bytes) -> None:
        """Keep a block, in place of the least recently used one if the file is full. Raises `OSError`."""
        if digest in self._slots or len(block) != self._block_bytes:
            return
        slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
        self._clock += 1
        head = _HEAD.pack(digest, self._clock, self._checksum(digest, block))
        try:
            if os.pwritev(self._file, [head, block], self._start_of(slot)) != len(head) + len(block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._free.append(slot)
            raise
        self._slots[digest] = slot

    def forget(self, digest: bytes) -> None:
        """Drop a block, if it is there. Raises `OSError`."""
        slot = self._slots.pop(digest, None)
        if slot is not None:
            self._free.append(slot)
            os.pwrite(self._file, _NO_DIGEST, self._start_of(slot))

    def close(self) -> None:
        """Let others use the file."""
        os.close(self._file)

    def _start(self, identity: bytes) -> bytes:
        """Make the file an empty one of ours. Returns its secret."""
        os.ftruncate(self._file, 0)
        secret = secrets.token_bytes(32)
        header = _header(identity, self._block_bytes, secret)
        if os.pwrite(self._file, header, 0) != len(header):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return secret

    def _read_header(self, path: Path, identity: bytes) -> bytes:
        """Return the secret, of a new file if this one holds other blocks. Raises `Unusable` if it is none of ours."""
        header = os.pread(self._file, _HEADER.size, 0)
        if not header.startswith(_MAGIC):
            raise Unusable("it is another kind of file")
        if len(header) == _HEADER.size:
            secret: bytes = _HEADER.unpack(header)[4]
            if header == _header(identity, self._block_bytes, secret):
                return secret
        logger.info(
            "the prefix cache file belongs to another model or is damaged; it starts anew", extra={"file": str(path)}
        )
        return self._start(identity)

    def _read_heads(self) -> None:
        """Find the blocks in the file, and cut off what exceeds its limit."""
        size = os.fstat(self._file).st_size
        end = self._start_of(self._num_slots)
        if size > end:
            os.ftruncate(self._file, end)
        found: dict[bytes, tuple[int, int]] = {}
        for slot in range(self._num_slots):
            head = os.pread(self._file, _HEAD.size, self._start_of(slot)) if self._start_of(slot) < size else b""
            digest, used, _ = _HEAD.unpack(head) if len(head) == _HEAD.size else (_NO_DIGEST, 0, b"")
            if digest == _NO_DIGEST or digest in found:
                self._free.append(slot)
            else:
                found[digest] = used, slot
        self._free.reverse()  # the file grows from its beginning
        for digest, (used, slot) in sorted(found.items(), key=lambda item: item[1]):
            self._slots[digest] = slot
            self._clock = min(used, 2**63)

    def _start_of(self, slot: int) -> int:
        return _HEADER.size + slot * (_HEAD.size + self._block_bytes)

    def _checksum(self, digest: bytes, block: bytes) -> bytes:
        checksum = hashlib.blake2b(digest, key=self.secret, digest_size=16)
        checksum.update(block)
        return checksum.digest()


def _header(identity: bytes, block_bytes: int, secret: bytes) -> bytes:
    without = _HEADER.pack(_MAGIC, _VERSION, block_bytes, identity, secret, b"")
    checksum = hashlib.blake2b(without, digest_size=16).digest()
    return _HEADER.pack(_MAGIC, _VERSION, block_bytes, identity, secret, checksum)


def _open(path: Path) -> int:
    """Return the descriptor of a locked file that is ours alone. Raises `Unusable`, or `OSError`."""
    path.parent.mkdir(
        mode=0o700, exist_ok=True
    )  # an empty volume is often writable by everybody, a folder in it is not
    folder = path.parent.stat()
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        raise Unusable(f"others can write to {path.parent}")
    # A link would be followed to anywhere, and opening a pipe would wait for its other end.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise Unusable("it is not a regular file with one name")
        if status.st_uid != os.geteuid():
            raise Unusable(f"it belongs to user {status.st_uid}")
        if status.st_mode & 0o077:
            raise Unusable(f"its mode {stat.S_IMODE(status.st_mode):o} lets others open it")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Unusable("another engine uses it") from error
    except BaseException:
        os.close(file)
        raise
    return file
