"""Moves blocks between the KV cache and a file. A thread of its own reads and writes the file, never the engine's."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from backends.paged.block_pool import BlockPool
from backends.paged.prefix_file import PrefixFile
from backends.paged.runner import Runner

logger = logging.getLogger(__name__)

BATCH_BYTES = 32 * 2**20
"""Bytes that are read at once, and bytes in memory that wait to be written."""
STEP_BYTES = 8 * 2**20
"""Bytes that are copied in one step, for the thread to write. It takes about two milliseconds."""
PAUSE = 60.0
"""Seconds without further attempts after a write has failed."""
PATIENCE = 5.0
"""Seconds in which a batch must be read. A sequence computes what the disk has not delivered by then."""
_MAX_CANDIDATES = 65_536


@dataclass(eq=False, slots=True)
class Restoring:
    """A prompt's blocks that come from the file, in order. `reading` are those that are being read."""

    digests: list[bytes]
    reading: list[bytes] = field(default_factory=list)
    blocks: Future[list[bytes]] = field(default_factory=Future)
    deadline: float = 0.0


class PrefixStore:
    """Keeps the beginnings that sequences have shared in `file`, and brings them back into the pool.

    Only the thread of the engine calls it, except for the counters. `clock` returns seconds.
    """

    def __init__(
        self, file: PrefixFile, runner: Runner, pool: BlockPool, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._runner = runner
        self._pool = pool
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-file")
        self._candidates: OrderedDict[bytes, None] = OrderedDict()
        self._writes: list[Future[None]] = []
        self._paused_until = float("-inf")
        self._hung: Future[list[bytes]] | None = None
        self.num_queried_tokens = 0
        """Prompt tokens that were looked up in the file, and in `num_hit_tokens` those that came from it."""
        self.num_hit_tokens = 0

    # From the file

    def restore(self, digests: Sequence[bytes]) -> Restoring | None:
        """Start to read the blocks of a prompt that the pool lacks. Returns None if there are none in the file."""
        if self._hangs:
            return None
        missing = [digest for digest in digests if self._pool.find(digest) is None]
        self.num_queried_tokens += len(missing) * self._runner.block_size
        wanted = []
        for digest in missing:
            if digest not in self._file:
                break
            wanted.append(digest)
        if not wanted:
            return None
        restoring = Restoring(wanted)
        self._read_more(restoring)
        return restoring

    def advance(self, restoring: Restoring) -> bool:
        """Put what has been read into the pool. Returns True if there is nothing more to wait for."""
        if not restoring.blocks.done():
            if self._clock() < restoring.deadline:
                return False
            self._hung = restoring.blocks
            logger.warning(
                "the prefix cache file is slow to read; a prompt is computed instead", extra={"seconds": PATIENCE}
            )
            return True
        blocks = restoring.blocks.result()
        for digest, block in zip(restoring.reading, blocks, strict=False):
            if self._pool.find(digest) is None:
                if self._pool.num_free == 0:
                    return True
                self._put(digest, block)
        if len(blocks) < len(restoring.reading) or not restoring.digests:
            return True
        self._read_more(restoring)
        return False

    def _read_more(self, restoring: Restoring) -> None:
        count = max(1, BATCH_BYTES // self._runner.block_bytes)
        restoring.reading, restoring.digests = restoring.digests[:count], restoring.digests[count:]
        restoring.deadline = self._clock() + PATIENCE
        restoring.blocks = self._thread.submit(self._read, restoring.reading)

    def _read(self, digests: list[bytes]) -> list[bytes]:
        """Return the blocks up to the first that cannot be read."""
        blocks = []
        try:
            for digest in digests:
                block = self._file.read(digest)
                if block is None:
                    break
                blocks.append(block)
        except OSError as error:
            logger.warning("the prefix cache file cannot be read", extra={"reason": str(error)})
        return blocks

    def _put(self, digest: bytes, data: bytes) -> None:
        blocks = self._pool.allocate(1)
        self._runner.write_block(blocks[0], data)
        self._pool.register(blocks[0], digest)
        self._pool.free(blocks)
        self.num_hit_tokens += self._runner.block_size

    # To the file

    def keep(self, digests: Sequence[bytes]) -> None:
        """Note that a sequence has shared these blocks of the pool, so that they are worth keeping."""
        if self._hangs:
            return
        known = [digest for digest in digests if digest in self._file]
        if known:
            self._thread.submit(self._use, known)
        for digest in digests:
            if digest not in self._file and len(self._candidates) < _MAX_CANDIDATES:
                self._candidates[digest] = None

    def forget(self, digests: Sequence[bytes]) -> None:
        """Drop blocks of a sequence that has failed. They may be why, and would be so again after a restart."""
        for digest in digests:
            self._candidates.pop(digest, None)
        self._thread.submit(self._forget, list(digests))

    def spill(self) -> None:
        """Copy some of these blocks for the thread to write. Those that the pool has given away by now are dropped."""
        if not self._candidates or self._hangs or self._clock() < self._paused_until:
            return
        self._writes = [write for write in self._writes if not write.done()]
        size = self._runner.block_bytes
        most = max(1, BATCH_BYTES // size) - len(self._writes)
        for _ in range(min(most, max(1, STEP_BYTES // size), len(self._candidates))):
            digest, _ = self._candidates.popitem(last=False)
            block = self._pool.find(digest)
            if block is not None and digest not in self._file:
                self._writes.append(self._thread.submit(self._write, digest, self._runner.read_block(block)))

    def close(self) -> None:
        """Write what is left and close the file."""
        while self._candidates and not self._hangs and self._clock() >= self._paused_until:
            wait(self._writes)
            self.spill()
        self._thread.shutdown()
        self._file.close()

    @property
    def _hangs(self) -> bool:
        """Tell whether the disk has not yet delivered what a prompt has given up waiting for."""
        return self._hung is not None and not self._hung.done()

    def _forget(self, digests: list[bytes]) -> None:
        try:
            for digest in digests:
                self._file.forget(digest)
        except OSError as error:
            logger.warning("the prefix cache file cannot be written", extra={"reason": str(error), "pause": PAUSE})

    def _write(self, digest: bytes, block: bytes) -> None:
        if self._clock() < self._paused_until:
            return
        try:
            self._file.write(digest, block)
        except OSError as error:
            self._paused_until = self._clock() + PAUSE
            logger.warning("the prefix cache file cannot be written", extra={"reason": str(error), "pause": PAUSE})

    def _use(self, digests: list[bytes]) -> None:
        for digest in digests:
            try:
                self._file.use(digest)
            except OSError:  # noqa: PERF203  a write will say so
                return
