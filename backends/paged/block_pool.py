"""The blocks of a KV cache: which are free, which are shared, and which still hold the beginning of a known text."""

from __future__ import annotations

import hashlib
import heapq
import secrets
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """Counts the users of each block, and finds full blocks by the tokens in them.

    A free block keeps its contents until it is needed for other tokens. The least recently used ones go first.
    So a later sequence with the same beginning need not compute it again. Blocks without such contents are used before
    those, first the ones that take memory, then the lowest-numbered, because neighbours share pages. `clock` returns
    seconds. Not thread-safe.
    """

    def __init__(self, num_blocks: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_blocks = num_blocks
        self._clock = clock
        self._users = [0] * num_blocks
        self._pristine = list(range(num_blocks))  # a heap of the blocks that take no memory
        self._empty: list[int] = []  # a stack: memory that was used last is used again first
        self._unused: OrderedDict[int, float] = OrderedDict()  # cached blocks without users, by the time they got free
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._end_after: dict[bytes, int] = {}
        self._end_of: dict[int, tuple[bytes, list[int]]] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that `allocate` can return."""
        return len(self._pristine) + len(self._empty) + len(self._unused)

    def allocate(self, count: int) -> list[int]:
        """Return `count` blocks, each with one user. There must be as many free ones."""
        assert count <= self.num_free  # noqa: S101  the scheduler asks first
        blocks = [self._take() for _ in range(count)]
        for block in blocks:
            self._users[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a user to a block that `find` has returned."""
        self._unused.pop(block, None)
        self._users[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one user from each block of a sequence. Its end is given away before its beginning."""
        now = self._clock()
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._digest_of or block in self._end_of:
                    self._unused[block] = now
                else:
                    self._empty.append(block)

    # Prefix cache

    def find(self, digest: bytes) -> int | None:
        """Return the block with these tokens, or None."""
        return self._block_of.get(digest)

    def is_unused(self, block: int) -> bool:
        """Tell whether a block that `find` has returned counts as free."""
        return block in self._unused

    def register(self, block: int, digest: bytes) -> None:
        """Let `find` return this block, which is full and must not change any more. The first of equal ones stays."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def find_end(self, digest: bytes) -> tuple[int, list[int]] | None:
        """Return the block with what `keep_end` has kept after the text of this digest, and its tokens, or None."""
        block = self._end_after.get(digest)
        return None if block is None else (block, self._end_of[block][1])

    def keep_end(self, block: int, digest: bytes, token_ids: list[int]) -> None:
        """Let `find_end` return this block, in place of another one. It starts with `token_ids`, and has a user.

        It must not change any more, except that a sequence may add tokens behind these.
        """
        self._forget_end(self._end_after.get(digest))
        self._forget_end(block)
        self._end_after[digest] = block
        self._end_of[block] = digest, token_ids

    def forget(self, blocks: Sequence[int]) -> None:
        """Let `find` and `find_end` no longer return these blocks."""
        for block in blocks:
            digest = self._digest_of.pop(block, None)
            if digest is not None:
                del self._block_of[digest]
            self._forget_end(block)
            if self._unused.pop(block, None) is not None:
                self._empty.append(block)

    def _forget_end(self, block: int | None) -> None:
        """Let `find_end` no longer return this block."""
        if block is not None and (end := self._end_of.pop(block, None)) is not None:
            del self._end_after[end[0]]
            if block not in self._digest_of and self._unused.pop(block, None) is not None:
                self._empty.append(block)

    def reclaimable(self, unused_seconds: float) -> list[int]:
        """Return free blocks whose memory can be given back: empty ones, and cached ones unused for that long."""
        oldest = self._clock() - unused_seconds
        self.forget([block for block, since in self._unused.items() if since <= oldest])
        blocks = sorted(self._empty)
        self._empty.clear()
        self._pristine += blocks
        heapq.heapify(self._pristine)
        return blocks

    def _take(self) -> int:
        if self._empty:
            return self._empty.pop()
        if self._pristine:
            return heapq.heappop(self._pristine)
        block = next(iter(self._unused))
        self.forget([block])
        return self._empty.pop()


_SECRET = secrets.token_bytes(32)


def text_digest(cache_key: bytes, secret: bytes = _SECRET) -> bytes:
    """Return the digest of an empty text with this `cache_key`, before its first block."""
    return hashlib.blake2b(cache_key, key=secret, digest_size=16).digest()


def block_digests(
    token_ids: Sequence[int],
    block_size: int,
    *,
    cache_key: bytes = b"",
    known: Sequence[bytes] = (),
    secret: bytes = _SECRET,
) -> list[bytes]:
    """Return the digest of each full block: of its tokens, all tokens before it, and `cache_key`.

    `known` are digests of the first blocks that have been computed before. Without `secret`, which is this process's own
    by default, nobody can construct two texts with the same digest.
    """
    digests = list(known)
    digest = digests[-1] if digests else text_digest(cache_key, secret)
    for start in range(len(digests) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = array("q", token_ids[start : start + block_size])
        digest = hashlib.blake2b(digest + tokens.tobytes(), key=secret, digest_size=16).digest()
        digests.append(digest)
    return digests
