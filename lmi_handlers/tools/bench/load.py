"""Sends the requests of a workload, and notes when their tokens arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

import aiohttp
import msgspec

from lmi_handlers.core.redaction import redacted
from lmi_handlers.tools.bench.workload import Item
from lmi_handlers.tools.client.answer import Lines, document, parsed
from lmi_handlers.tools.client.apis import APIS, Question, said
from lmi_handlers.tools.client.errors import AnswerFailed, AnswerTooLong

_LONGEST_ERROR = 200
_LONGEST_CAUSE = 4096
"""Bytes that are read of the body of an error."""


class Timing(msgspec.Struct):
    """One request. Times are seconds since the beginning of the run; `arrivals` has one per event with text."""

    started: float
    ended: float = 0.0
    arrivals: list[float] = []
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """The number of generated tokens: the server's count, or else the number of events with text."""
        return len(self.arrivals) if self.output_tokens is None else self.output_tokens


class OfferedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load: requests, their number and the server.

    Without `gaps` the loop is closed: `concurrency` clients each send a request when the last one is answered. With
    `gaps`, seconds between arrivals, it is open: requests are sent when their time has come, whatever is unanswered, but
    at most `concurrency` at a time if that is not 0. It ends after `requests` requests or `duration` seconds.
    """

    url: str
    api: str
    model: str
    items: Iterator[Item]
    concurrency: int
    requests: int
    duration: float | None = None
    gaps: Iterator[float] | None = None
    timeout: float = 600.0
    headers: Mapping[str, str] = {}
    ignore_eos: bool = False


async def send(load: OfferedLoad) -> tuple[list[Timing], float]:
    """Send the load. Returns all requests, in the order in which they were started, and the seconds that it took."""
    run = _Run(load)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=load.timeout)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=dict(load.headers)) as session:
        await (run.open(session) if load.gaps is not None else run.closed(session))
    return run.timings, run.now()


class _Run:
    def __init__(self, load: OfferedLoad) -> None:
        self._load = load
        self._api = APIS[load.api]
        self._began = time.perf_counter()
        self.timings: list[Timing] = []

    def now(self) -> float:
        return time.perf_counter() - self._began

    def _next(self) -> Item | None:
        """Return the next request, or None if no more are to be sent."""
        duration = self._load.duration
        if len(self.timings) >= self._load.requests or (duration is not None and self.now() >= duration):
            return None
        return next(self._load.items)

    async def closed(self, session: aiohttp.ClientSession) -> None:
        async def client() -> None:
            while (item := self._next()) is not None:
                await self._request(session, item, self._start())

        await asyncio.gather(*(client() for _ in range(self._load.concurrency)))

    async def open(self, session: aiohttp.ClientSession) -> None:
        assert self._load.gaps is not None  # noqa: S101  otherwise the loop is closed
        places = asyncio.Semaphore(self._load.concurrency or self._load.requests)
        due, sent = 0.0, []
        while (item := self._next()) is not None:
            due += next(self._load.gaps)
            if self._load.duration is not None and due > self._load.duration:
                break
            await asyncio.sleep(due - self.now())
            await places.acquire()
            task = asyncio.ensure_future(self._request(session, item, self._start()))
            task.add_done_callback(lambda _: places.release())
            sent.append(task)
        await asyncio.gather(*sent)

    def _start(self) -> Timing:
        timing = Timing(self.now(), arrivals=[])
        self.timings.append(timing)
        return timing

    async def _request(self, session: aiohttp.ClientSession, item: Item, timing: Timing) -> None:
        body = msgspec.json.encode(self._api.body(self._question(item)))
        try:
            async with session.post(
                self._load.url + self._api.path,
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,  # the headers, and the key among them, go to this server only
            ) as response:
                if response.status == 200:
                    await self._read(response, timing)
                else:
                    text = response.headers.get("Location") or await _beginning(response)
                    timing.error = f"{response.status}: {' '.join(redacted(text[:_LONGEST_ERROR]).split())}"
        except asyncio.TimeoutError:
            timing.error = f"no complete answer within {self._load.timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            timing.error = redacted(f"{type(error).__name__}: {error}")[:_LONGEST_ERROR]
        except AnswerTooLong as error:
            timing.error = str(error)
        timing.ended = self.now()

    def _question(self, item: Item) -> Question:
        ignored = {"ignore_eos": True} if self._load.ignore_eos and self._api.ignores_eos else {}
        return Question(
            messages=[{"role": "user", "content": item.prompt}],
            prompt=item.prompt,
            model=self._load.model,
            limit=item.output_tokens,
            parameters={**self._api.measured, **ignored},
        )

    async def _read(self, response: aiohttp.ClientResponse, timing: Timing) -> None:
        """Read a stream. Events that arrive together get the same time, as their reader would see them.

        Raises `AnswerTooLong`.
        """
        lines, now = Lines(), self.now()
        async for chunk in response.content.iter_any():
            now = self.now()
            for line in lines.add(chunk):
                self._note(line, now, timing)
        self._note(lines.rest, now, timing)
        if timing.error is None and not timing.arrivals and not timing.output_tokens:
            timing.error = "the stream ended without a token"

    def _note(self, line: bytes, now: float, timing: Timing) -> None:
        if (data := document(line)) is None:
            return
        try:
            if (record := parsed(data)) is None:
                raise AnswerFailed(redacted(f"an event is not a JSON document: {data.decode(errors='replace')}"))
            event = said(record)
        except AnswerFailed as error:
            timing.error = timing.error or str(error)[:_LONGEST_ERROR]
            return
        if event.text or event.reasoning or event.special:
            timing.arrivals.append(now)
        if event.prompt_tokens is not None:
            timing.prompt_tokens = event.prompt_tokens
        if event.output_tokens is not None:
            timing.output_tokens = event.output_tokens


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of a body as text, whatever the server calls its encoding: Python has some for other things."""
    data = b""
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) >= _LONGEST_CAUSE:
            break
    return data[:_LONGEST_CAUSE].decode(errors="replace")
