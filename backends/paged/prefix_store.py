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
"""Seconds in which a batch must be read, and in which a sequence gets its turn. It computes what is not there by then."""
_MAX_CANDIDATES = 65_536


@dataclass(eq=False, slots=True)
class Restoring:
    """A prompt's blocks that come from the file, in order. `reading` are those that are being read, once it is its turn.

    It waits for its turn until `deadline`.
    """

    digests: list[bytes]
    deadline: float
    reading: list[bytes] = field(default_factory=list)
    blocks: Future[list[bytes]] = field(default_factory=Future)


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
        self._uses: Future[None] | None = None
        self._reading: Future[list[bytes]] | None = None
        self._read_by = 0.0  # when the disk must have delivered that
        self.num_queried_tokens = 0
        """Prompt tokens that were looked up in the file, and in `num_hit_tokens` those that came from it."""
        self.num_hit_tokens = 0

    # From the file

    def restore(self, digests: Sequence[bytes]) -> Restoring | None:
        """Read the blocks of a prompt that the pool lacks, as soon as `advance` may. Returns None if none are in the file."""
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
        restoring = Restoring(wanted, self._clock() + PATIENCE)
        if self._reading is None:  # otherwise what has been read may not be in the pool yet
            self._begin(restoring)
        return restoring

    def advance(self, restoring: Restoring) -> bool:
        """Put what has been read into the pool. Returns True if there is nothing more to wait for.

        One prompt is read at a time, so that those which begin alike read their beginning once, and memory has a bound.
        Call it for all prompts in order of arrival.
        """
        if not restoring.reading:
            return self._begin(restoring)
        if not restoring.blocks.done():
            if self._hangs:
                logger.warning(
                    "the prefix cache file is slow to read; a prompt is computed instead", extra={"seconds": PATIENCE}
                )
            return self._hangs
        blocks = restoring.blocks.result()
        if self._reading is restoring.blocks:
            self._reading = None  # else its result would stay in memory
        for digest, block in zip(restoring.reading, blocks, strict=False):
            if self._pool.find(digest) is None:
                if self._pool.num_free == 0:
                    return True
                self._put(digest, block)
        if len(blocks) < len(restoring.reading) or not restoring.digests:
            return True
        self._read_more(restoring)
        return False

    def _begin(self, restoring: Restoring) -> bool:
        """Read the first blocks if it is this prompt's turn. Returns True if it has nothing to wait for, or has waited."""
        if self._reading is not None and not self._reading.done():
            return self._hangs or self._clock() >= restoring.deadline
        restoring.digests = [digest for digest in restoring.digests if self._pool.find(digest) is None]
        if not restoring.digests:
            return True
        self._read_more(restoring)
        return False

    def _read_more(self, restoring: Restoring) -> None:
        count = max(1, BATCH_BYTES // self._runner.block_bytes)
        restoring.reading, restoring.digests = restoring.digests[:count], restoring.digests[count:]
        self._read_by = self._clock() + PATIENCE
        self._reading = restoring.blocks = self._thread.submit(self._read, restoring.reading)

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
        if known and (self._uses is None or self._uses.done()):  # a slow disk must not let them pile up
            self._uses = self._thread.submit(self._use, known)
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
        """Tell whether the disk has not delivered in time what was read last."""
        return self._reading is not None and not self._reading.done() and self._clock() >= self._read_by

    def _forget(self, digests: list[bytes]) -> None:
        try:
            for digest in digests:
                self._file.forget(digest)
        except OSError as error:
            self._pause(error)

    def _write(self, digest: bytes, block: bytes) -> None:
        if self._clock() < self._paused_until:
            return
        try:
            self._file.write(digest, block)
        except OSError as error:
            self._pause(error)

    def _pause(self, error: OSError) -> None:
        self._paused_until = self._clock() + PAUSE
        logger.warning("the prefix cache file cannot be written", extra={"reason": str(error), "pause": PAUSE})

    def _use(self, digests: list[bytes]) -> None:
        for digest in digests:
            try:
                self._file.use(digest)
            except OSError:  # noqa: PERF203  a write will say so
                return
