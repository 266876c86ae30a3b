"""Lets tests control the stand-in. The library has no such module."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Controls:
    """Settings of all engines that are created afterwards. `faults` apply at once.

    `faults` maps a prompt's first token to what happens to the request at its third token: "error" (the worker reports
    one), "timeout" or "cancel", "die" (the worker reports its end), "vanish" (it ends without a report).
    """

    step_seconds: float = 0.0
    tokens_per_response: int = 1
    end_id_in_token_ids: bool = True
    gpus: int = 8
    faults: dict[int, str] = dataclasses.field(default_factory=dict)


controls = Controls()
