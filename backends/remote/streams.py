"""Asks the remote for many sequences at a time, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from backends.remote.client import Client, ConnectionFailed, NotConnected, reason
from backends.remote.protocol import RemoteProtocol, RemoteSequence
from backends.waiting_sequences import refusal
from lmi_handlers.core.errors import QueueFull, RequestError, RequestFailed
from lmi_handlers.core.outputs import TokenOutput

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL = 1.0
_LOOK_SECONDS = 5.0
_FAILURES = 2
"""After so many failed looks in a row, the remote counts as dead: one may be an accident."""

_MAX_EMPTY = 1000
"""Events without tokens in one stream."""

_DRAIN_SECONDS = 5.0

_TOKEN_SECONDS = 1.0
"""Time that a slow remote needs for a token. Only used where an answer comes as a whole."""


class EventLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, while this thread waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, action: Callable[[], object]) -> None:
        """Call `action` in the loop's thread, soon."""
        self._loop.call_soon_threadsafe(action)

    def cancel(self) -> None:
        """Cancel what still runs."""
        self.run(_cancel_others())

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Streams:
    """The running sequences and their outputs. Checks the remote's health every second.

    A remote that has not answered for `patience` seconds counts as dead. One that has produced no token for
    `longest_silence` no longer counts as making progress, although it answers. One that says that it is ill, or accepts
    no connections, but still sends tokens is draining: it counts as dead once its streams have ended.
    """

    def __init__(
        self, loop: EventLoop, client: Client, protocol: RemoteProtocol, *, vocab_size: int, patience: float
    ) -> None:
        self._loop = loop
        self._client = client
        self._protocol = protocol
        self._vocab_size = vocab_size
        self._patience = patience
        self._tasks: dict[RemoteSequence, asyncio.Task[None]] = {}
        self._answered: set[RemoteSequence] = set()
        self._outputs: queue.SimpleQueue[tuple[RemoteSequence, TokenOutput]] = queue.SimpleQueue()
        self._last_token = time.monotonic()
        self.progress = 0
        """Changes when the remote says that it works."""
        self.death = ""
        """The cause of the remote's death, "" while it is alive."""
        self._watch = loop.run(self._start_watch())

    def start(self, sequence: RemoteSequence, body: dict[str, Any]) -> None:
        """Ask for a sequence."""
        self._loop.start(lambda: self._start(sequence, body))

    def abort(self, sequence: RemoteSequence) -> None:
        """Close the connection of a sequence, which ends it at the remote. Some outputs may still be received."""
        self._loop.start(lambda: self._cancel(sequence))

    def receive(self, seconds: float) -> Iterator[tuple[RemoteSequence, TokenOutput]]:
        """Yield the outputs that are there. If there are none, wait so many seconds for the first."""
        with contextlib.suppress(queue.Empty):
            yield self._outputs.get(timeout=seconds)
            while True:
                yield self._outputs.get_nowait()

    def _start(self, sequence: RemoteSequence, body: dict[str, Any]) -> None:
        if not self._tasks:
            self._last_token = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._run(sequence, body))
        self._tasks[sequence] = task
        task.add_done_callback(lambda _: self._ended(sequence))

    def _ended(self, sequence: RemoteSequence) -> None:
        self._tasks.pop(sequence, None)
        self._answered.discard(sequence)

    def _cancel(self, sequence: RemoteSequence) -> None:
        task = self._tasks.pop(sequence, None)
        if task is not None:
            task.cancel()

    async def _run(self, sequence: RemoteSequence, body: dict[str, Any]) -> None:
        """Put all outputs of a sequence into the queue. The last one has a finish reason, whatever happens."""
        try:
            await self._read(sequence, body)
        except RequestError as error:
            self._fail(sequence, error)
        except NotConnected as error:
            self._fail(sequence, QueueFull(f"the remote engine accepts no more requests: {reason(error)}"))
        except ConnectionFailed as error:
            self._fail(sequence, RequestFailed(f"the connection to the remote engine broke: {reason(error)}"))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            title = self._protocol.title
            self._fail(sequence, RequestFailed(f"the remote engine broke {title}'s protocol: {reason(error)}"))
        except Exception as error:
            logger.exception("a request to the remote engine failed")
            self._fail(sequence, RequestFailed(f"it failed ({type(error).__name__}); the server's log says more"))

    def _fail(self, sequence: RemoteSequence, error: RequestError) -> None:
        self._outputs.put((sequence, refusal(sequence.request.request_id, error)))

    async def _read(self, sequence: RemoteSequence, body: dict[str, Any]) -> None:
        """Read the answer to its end. Raises an error that this sequence alone is to end with."""
        read, path = self._protocol.reader(sequence), self._protocol.path
        longest = self._protocol.longest_answer(sequence)
        if longest is not None:
            output = read(await self._client.answer(path, body, longest=longest))
            if output is None or output.finish_reason is None:
                raise RequestFailed("the remote engine sent an answer without an end")
            self._take(sequence, output, 0)
            return
        count = empty = 0
        events = self._client.events(path, body, longest=self._protocol.longest_event(sequence))
        async with contextlib.aclosing(events):
            async for data in events:
                output = read(data)
                if output is None or not (output.token_ids or output.finish_reason):
                    empty += 1
                    if empty > _MAX_EMPTY:
                        raise RequestFailed("the remote engine sends events without tokens")
                    continue
                count = self._take(sequence, output, count)
                if output.finish_reason is not None:
                    await asyncio.wait_for(_drain(events), _DRAIN_SECONDS)
                    return
        raise RequestFailed("the remote engine ended its answer before the sequence had ended")

    def _take(self, sequence: RemoteSequence, output: TokenOutput, count: int) -> int:
        """Check an output, of a sequence that has had `count` tokens. Returns how many it has now."""
        count += len(output.token_ids)
        if count > sequence.max_tokens:
            raise RequestFailed(f"the remote engine sent more than {sequence.max_tokens} tokens")
        if any(not 0 <= token < self._vocab_size for token in _token_ids(output)):
            raise RequestFailed(f"the remote engine sent a token id that is not from 0 to {self._vocab_size - 1}")
        for logprobs in (output.logprobs, output.top_logprobs):
            if logprobs is not None and len(logprobs) != len(output.token_ids):
                raise RequestFailed("the remote engine did not send the log probability of each token")
        self._last_token = time.monotonic()
        self._answered.add(sequence)
        self._outputs.put((sequence, output))
        return count

    async def _start_watch(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Ask for the remote's health again and again, until it is dead."""
        failures, answered = 0, time.monotonic()
        while not self.death:
            await asyncio.sleep(_LOOK_INTERVAL)
            try:
                status = (await self._client.ask(self._protocol.health, seconds=_LOOK_SECONDS)).status
            except asyncio.TimeoutError:
                if time.monotonic() - answered > self._patience:
                    self.death = f"it has not answered for {self._patience:g} s"
            except (*ConnectionFailed, RequestError) as error:
                failures += 1
                if failures >= _FAILURES and not self._drains():
                    self.death = reason(error)
            else:
                answered = time.monotonic()
                failures = failures + 1 if status >= 500 else 0
                if failures >= _FAILURES and not self._drains():
                    self.death = f"{self._protocol.health} has status {status}"
                if answered - self._last_token < longest_silence(self._protocol, self._tasks, self._patience):
                    self.progress += 1

    def _drains(self) -> bool:
        """Tell whether some stream has begun that may still go on. Those of a remote that has ended break at once."""
        return bool(self._answered) and time.monotonic() - self._last_token < self._patience


def longest_silence(protocol: RemoteProtocol, running: Iterable[RemoteSequence], patience: float) -> float:
    """Return the seconds in which a remote that works sends at least one token.

    These are five times `patience`, and more while an answer is awaited that comes as a whole.
    """
    whole = (sequence.max_tokens for sequence in running if protocol.longest_answer(sequence) is not None)
    return 5 * patience + _TOKEN_SECONDS * max(whole, default=0)


def _token_ids(output: TokenOutput) -> Iterable[int]:
    """Return all token ids that the remote has chosen, also those of the alternatives."""
    if output.top_logprobs is None and output.prompt_top_logprobs is None:
        return output.token_ids
    positions = (*(output.top_logprobs or ()), *(output.prompt_top_logprobs or ()))
    return chain(output.token_ids, (token for position in positions for token, _ in position or ()))


async def _drain(events: AsyncGenerator[bytes, None]) -> None:
    """Read what follows the last output, which is next to nothing, so that the connection can be used again."""
    empty = 0
    async for _ in events:
        empty += 1
        if empty > _MAX_EMPTY:
            return


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
