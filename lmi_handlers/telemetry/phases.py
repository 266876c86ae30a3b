"""The phases of a request, and the response header that tells how long they took."""

from __future__ import annotations

from collections.abc import Iterator

from lmi_handlers.core.usage import Usage

PHASES = ("tokenize", "queue", "prefill", "decode", "format")
"""In order: parsing and tokenising, the engine's queue, until the first token, until the last one, the rest of the answer."""


def phases(usage: Usage, duration: float, *, complete: bool) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the begin and the end of each phase that has begun, in seconds since `usage.started`.

    Unless the answer is `complete`, the last phase yielded has not ended: it lasts until `duration`.
    """
    validation, queue = usage.validation_time, usage.queue_time
    queued = None if validation is None or queue is None else validation + queue
    ends = (
        validation,
        queued,
        usage.first_token_time,
        usage.last_token_time if complete else None,
        duration if complete else None,
    )
    begin = 0.0
    for name, end in zip(PHASES, ends, strict=True):
        if end is None:
            yield name, begin, duration
            return
        end = max(begin, min(end, duration))
        yield name, begin, end
        begin = end


def server_timing(usage: Usage, duration: float, *, complete: bool) -> str:
    """Return the value of the header `Server-Timing`. Unless the answer is `complete`, it has the phases that have ended.

    Source: https://www.w3.org/TR/server-timing/
    """
    known = list(phases(usage, duration, complete=complete))
    timed = known if complete else known[:-1]
    entries = [f"{name};dur={1000 * (end - begin):.1f}" for name, begin, end in timed]
    return ", ".join([*entries, f"total;dur={1000 * duration:.1f}"] if complete else entries)
