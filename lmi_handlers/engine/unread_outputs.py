"""The outputs of one request that nobody has read yet."""

from __future__ import annotations

import queue
import threading

from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.engine.outbox import join

_UNREAD = 256
"""Maximum number of outputs per sequence that are queued individually."""

_UNREAD_IN_ALL = 4096
"""The same for a request with many sequences, if that is at least four per sequence. Each output takes a kilobyte."""

_NOTHING = SequenceOutput(0, -1, TokenOutput(request_id="", token_ids=[]), 0.0)
"""An output of no sequence."""


class UnreadOutputs:
    """A queue of one request's outputs, with an error as its last item. One thread reads, the client's threads write.

    If the reader falls behind (because its client reads no bytes), later outputs are joined. They then take little more
    memory than the tokens themselves.
    """

    def __init__(self, sequences: int) -> None:
        self._max_unread = min(_UNREAD * sequences, max(_UNREAD_IN_ALL, 4 * sequences))
        self._queue: queue.SimpleQueue[SequenceOutput | LMIError] = queue.SimpleQueue()
        self._behind = threading.Lock()
        self._joined: list[SequenceOutput] = []
        self._unjoined: list[SequenceOutput] = []
        self._error: LMIError | None = None

    def put(self, item: SequenceOutput | LMIError) -> None:
        """Add an item. Never waits for the reader."""
        if not self._unjoined and self._queue.qsize() < self._max_unread:
            self._queue.put(item)
            return
        with self._behind:
            if not self._unjoined and self._queue.qsize() < self._max_unread:
                self._queue.put(item)
            elif isinstance(item, LMIError):
                self._error = item
            else:
                self._unjoined.append(item)
                if len(self._unjoined) > self._max_unread:
                    # Keep one: an empty list would mean that the reader has caught up.
                    self._joined += join(self._unjoined[:-1])
                    del self._unjoined[:-1]
                    if len(self._joined) > self._max_unread:
                        self._joined = join(self._joined)

    def wake(self) -> None:
        """Let the reader return from `take`. If it has not got all items yet, it will do so anyway."""
        if self._queue.empty():
            self._queue.put(_NOTHING)

    def empty(self) -> bool:
        """Tell whether `take` would wait."""
        return self._queue.empty()

    def take(self) -> list[SequenceOutput | LMIError]:
        """Wait for an item or `wake`, then return all items in order. After `wake`, one belongs to no sequence."""
        items = [self._queue.get()]
        while not self._queue.empty():
            items.append(self._queue.get())
        if len(items) < self._max_unread and not self._unjoined:  # then nobody has found the queue full meanwhile
            return items
        with self._behind:
            while not self._queue.empty():
                items.append(self._queue.get())
            # These arrived while the queue was full, so they come after its contents.
            items += [*self._joined, *self._unjoined]
            if self._error is not None:
                items.append(self._error)
            self._joined, self._unjoined, self._error = [], [], None
        return items
