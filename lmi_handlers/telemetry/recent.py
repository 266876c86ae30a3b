"""The last requests of all web workers, for the console. Never their prompts, unless an option asks for them.

Like its metrics, each worker keeps them in a file of its own that it maps into memory: a request costs one copy into it,
and whoever reads the files sees the requests of all workers, and of those that are gone. The file begins with the number
of requests that it has ever had. So a reader decodes only those that it has not seen.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.request import ChatPrompt, GenerationRequest
from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics.cells import claim
from lmi_handlers.telemetry.phases import phases

KEPT = 100
"""Requests that each worker keeps, and that `recent_requests` returns."""

_COUNT = 8
_SLOT = 2048
_LENGTH = 2
_SIZE = _COUNT + KEPT * _SLOT
_TEXT = 300
_BRIEF = 50
"""Characters of each text that always fit into a slot, beside a request id of 256 characters."""

_REASONS = 8


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended at `time`, in seconds since 1970, in the worker with this process id.

    The fields are those of the request log. `phases` has the milliseconds of each phase that has begun.
    """

    time: float
    worker: int
    model: str
    request_id: str
    path: str
    status: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finish_reasons: list[str] = []
    first_token_ms: float | None = None
    total_ms: float = 0.0
    phases: dict[str, float] = {}
    error: str | None = None
    prompt: str | None = None


class RecentRequests:
    """The last requests of this worker. Thread-safe. `directory` is that of all workers; `prompts` keeps prompts, too."""

    def __init__(self, directory: Path, *, prompts: bool = False) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = claim(directory, _SIZE)
        self._map = mmap.mmap(self._descriptor, _SIZE)
        self._prompts = prompts
        self._worker = os.getpid()
        self._lock = threading.Lock()
        self._count = int.from_bytes(self._map[:_COUNT], "little")  # the file may be that of a worker that is gone

    def close(self) -> None:
        """Close the file. Late requests do no harm."""
        os.close(self._descriptor)

    def add(self, fields: dict[str, Any], usage: Usage, request: GenerationRequest | None = None) -> None:
        """Keep a request that has just been logged with these fields."""
        error: str | None = fields.get("error")
        timed = phases(usage, fields["total_ms"] / 1000, complete=error is None and usage.last_token_time is not None)
        recent = RecentRequest(
            time=time.time(),
            worker=self._worker,
            model=fields["model"][:_TEXT],
            request_id=fields["request_id"],
            path=fields["path"][:_TEXT],
            status=fields["status"],
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.generated_tokens,
            finish_reasons=usage.finish_reasons[:_REASONS],
            first_token_ms=fields["first_token_ms"],
            total_ms=fields["total_ms"],
            phases={name: round(1000 * (end - begin), 1) for name, begin, end in timed},
            error=None if error is None else error[:_TEXT],
            prompt=_beginning(request) if self._prompts and request is not None else None,
        )
        data = msgspec.json.encode(recent)
        if len(data) > _SLOT - _LENGTH:  # a character may take six bytes
            brief: dict[str, Any] = {
                "finish_reasons": recent.finish_reasons[:1],
                "model": recent.model[:_BRIEF],
                "path": recent.path[:_BRIEF],
                "error": None if error is None else error[:_BRIEF],
            }
            data = msgspec.json.encode(msgspec.structs.replace(recent, prompt=None, **brief))
        with self._lock:
            begin = _place(self._count)
            self._map[begin : begin + _LENGTH] = bytes(_LENGTH)  # whoever reads it now, skips it
            self._map[begin + _LENGTH : begin + _LENGTH + len(data)] = data
            self._map[begin : begin + _LENGTH] = len(data).to_bytes(_LENGTH, "little")
            self._count += 1
            self._map[:_COUNT] = self._count.to_bytes(_COUNT, "little")


class RecentReader:
    """Reads the last requests of all workers. Thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[Path, int] = {}
        self._kept: list[RecentRequest] = []
        self._lock = threading.Lock()

    def read(self, directories: Iterable[Path]) -> list[RecentRequest]:
        """Return the last requests in these directories and in those that were read before, the newest first."""
        with self._lock:
            seen, self._seen = self._seen, {}
            new: list[RecentRequest] = []
            for directory in directories:
                with contextlib.suppress(FileNotFoundError):  # the model has just been unloaded
                    for path in directory.iterdir():
                        new += self._new(path, seen.get(path, 0))
            if new:
                self._kept = sorted([*self._kept, *new], key=lambda request: request.time, reverse=True)[:KEPT]
            return self._kept

    def _new(self, path: Path, seen: int) -> Iterator[RecentRequest]:
        with path.open("rb", buffering=0) as file:
            count = int.from_bytes(file.read(_COUNT), "little")
            for number in range(max(seen, count - KEPT), count):
                slot = os.pread(file.fileno(), _SLOT, _place(number))
                length = int.from_bytes(slot[:_LENGTH], "little")
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # it is being written over
                    if length:
                        yield _decoder.decode(slot[_LENGTH : _LENGTH + length])
        self._seen[path] = count


def _place(number: int) -> int:
    return _COUNT + number % KEPT * _SLOT


def _beginning(request: GenerationRequest) -> str:
    """Return the beginning of the first prompt, or of a chat's last message."""
    content = request.prompts[0].content
    if isinstance(content, ChatPrompt):
        last = content.messages[-1].get("content")
        if isinstance(last, list):
            last = " ".join(part["text"] for part in last if "text" in part)
        content = str(last or "")
    return content[:_TEXT] if isinstance(content, str) else ""


_decoder = msgspec.json.Decoder(RecentRequest)
