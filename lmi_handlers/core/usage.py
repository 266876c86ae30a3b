"""What a request costs, noted down as it goes through a web worker; for the log and for response headers."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct):
    """What one request has cost so far. Times are seconds, None until they are known.

    `started` is the monotonic time at which its body had arrived; `validation_time` is how long parsing and tokenising took,
    `queue_time` how long it then waited for the engine, `first_token_time` the time from `started` to its first token. It went
    to the engine as `sequences` sequences of at most `max_tokens` tokens; `finish_reasons` has one for each that has finished.
    `device` is what the engine runs on, as it says itself.
    """

    started: float
    prompt_tokens: int = 0
    generated_tokens: int = 0
    sequences: int = 0
    max_tokens: int = 0
    validation_time: float | None = None
    queue_time: float | None = None
    first_token_time: float | None = None
    finish_reasons: list[str] = []
    device: str = ""
