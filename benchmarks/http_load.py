"""The load generator: sends many HTTP requests at once from a single thread.

While the clock runs, it only sends and receives. Responses are parsed afterwards, because the client shares its CPU
cores with the server.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

_READ_SIZE = 1 << 16
_CONTENT_LENGTH = re.compile(rb"HTTP/1.1 .*?\r\ncontent-length: (\d+)\r\n(?:.*?\r\n)?\r\n", re.DOTALL | re.IGNORECASE)
_LAST_CHUNK = b"\n\r\n0\r\n\r\n"  # the end of the last record's chunk, then the empty chunk that ends the body


@dataclass(frozen=True)
class TimedResponse:
    """One response. `chunks` is the number of HTTP chunks in the body.

    `first_byte` is the time from sending the request to the first byte of the body, in seconds. The head does not
    count, because some servers send it before they have any output. `arrivals` has the `time.perf_counter()` at which
    each record of a stream had arrived in full.
    """

    status: int
    body: bytes
    chunks: int
    first_byte: float
    arrivals: list[float]

    @property
    def records(self) -> int:
        """The number of lines in the body."""
        return self.body.count(b"\n")


@dataclass(frozen=True)
class LoadResult:
    """The result of a load, with the answers in the order of the requests.

    `seconds` is the time from the first request to the end of the last answer.
    """

    answers: list[TimedResponse]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Records per second over all answers. Each record is one token."""
        return sum(answer.records for answer in self.answers) / self.seconds

    @property
    def slowest_first_byte(self) -> float:
        """The longest `first_byte` of all answers, in seconds."""
        return max(answer.first_byte for answer in self.answers)

    @property
    def records_per_chunk(self) -> float:
        """The average number of records per HTTP chunk."""
        return sum(answer.records for answer in self.answers) / sum(answer.chunks for answer in self.answers)


def invocation(prompt: str, *, stream: bool = True, **parameters: object) -> bytes:
    """Return a request in LMI's dialect."""
    return post({"inputs": prompt, "stream": stream, "parameters": parameters})


def post(document: object, path: str = "/invocations") -> bytes:
    """Return a request with a body of JSON."""
    body = json.dumps(document).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run_load(
    port: int, requests: Iterable[bytes], concurrency: int, timeout: float = 120.0, *, interval: float = 0.0
) -> LoadResult:
    """Send `requests` over `concurrency` connections, each with one request at a time.

    All connections are opened before the first request is sent. With an `interval`, they are opened one after the other
    instead, that many seconds apart. Raises `TimeoutError` if not all requests are answered in time, and `RuntimeError`
    if an answer is not a 200.
    """
    waiting = iter(requests)
    sent: list[_Exchange] = []
    with ExitStack() as stack:
        poller = stack.enter_context(select.epoll())

        def connect() -> socket.socket:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            poller.register(sock, select.EPOLLIN)
            return sock

        sockets = (connect() for _ in range(concurrency))
        unused = zip(waiting, sockets if interval else [*sockets], strict=False)
        started = time.perf_counter()
        exchanges: dict[int, _Exchange] = {}
        begun = 0
        while exchanges or begun < concurrency:
            while begun < concurrency and time.perf_counter() >= started + begun * interval:
                begun += 1
                for first, sock in islice(unused, 1):  # none if there are fewer requests than connections
                    exchanges[sock.fileno()] = _Exchange(sock, first)
                    sent.append(exchanges[sock.fileno()])
            if time.perf_counter() - started > timeout:
                raise TimeoutError(f"{len(exchanges)} requests are not answered after {timeout:g} s")
            for descriptor, _ in poller.poll(1.0 if begun == concurrency else interval / 2):
                exchange = exchanges[descriptor]
                if exchange.receive():
                    continue
                del exchanges[descriptor]
                if (request := next(waiting, None)) is not None:
                    exchanges[descriptor] = _Exchange(exchange.socket, request)
                    sent.append(exchanges[descriptor])
                else:
                    poller.unregister(descriptor)  # the server may close it
        seconds = time.perf_counter() - started
    return LoadResult([exchange.answer() for exchange in sent], seconds)


class _Exchange:
    """A request that has been sent, and the response received so far."""

    def __init__(self, sock: socket.socket, request: bytes) -> None:
        self.socket = sock
        self._received: list[bytes] = []
        self._received_at: list[float] = []
        self._tail = b""
        self._first_byte = 0.0
        self._missing: int | None = None  # bytes still to come, if there is a Content-Length
        self._sent_at = time.perf_counter()
        sock.sendall(request)

    def receive(self) -> bool:
        """Receive what has arrived. Return false at the end of the response or if the connection was closed."""
        data = self.socket.recv(_READ_SIZE)
        self._received_at.append(time.perf_counter())
        if not self._received and (match := _CONTENT_LENGTH.match(data)):
            self._missing = match.end() + int(match[1])
        if not self._first_byte and (self._received or data.partition(b"\r\n\r\n")[2]):
            self._first_byte = self._received_at[-1] - self._sent_at
        self._received.append(data)
        if self._missing is not None:
            self._missing -= len(data)
            return bool(data) and self._missing > 0
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        return bool(data) and self._tail != _LAST_CHUNK

    def answer(self) -> TimedResponse:
        """Parse the response. Raises `RuntimeError` if the status is not 200."""
        head, _, rest = b"".join(self._received).partition(b"\r\n\r\n")
        status_line, *fields = head.decode("latin-1").lower().split("\r\n")
        chunks = [rest]
        if "transfer-encoding: chunked" in fields:
            chunks = list(_chunks(rest))
        status = int((status_line.split() or ["", "0"])[1])
        answer = TimedResponse(status, b"".join(chunks), len(chunks), self._first_byte, list(self._arrivals()))
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.body[:300]!r}")
        return answer

    def _arrivals(self) -> Iterator[float]:
        """Yield when each record had arrived. A record ends with a newline, and only HTTP's own lines end with CRLF."""
        last = b""
        for data, received_at in zip(self._received, self._received_at, strict=True):
            records = data.count(b"\n") - (last[-1:] + data).count(b"\r\n")
            yield from [received_at] * records
            last = data


def _chunks(data: bytes) -> Iterator[bytes]:
    start = 0
    while True:
        line_end = data.index(b"\r\n", start)
        length = int(data[start:line_end], 16)
        if length == 0:
            return
        start = line_end + 2
        yield data[start : start + length]
        start += length + 2
