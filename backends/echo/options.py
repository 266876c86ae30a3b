"""The options that only echo has."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lmi_handlers.config.option import NonNegativeFloat, Option, PositiveFloat

DEFAULT_BATCH_SIZE = 32


class EchoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of the engine, and simulated failures."""

    echo_tokens_per_second: Annotated[
        PositiveFloat | None, Option("Speed of each sequence in tokens per second. Defaults to no limit.")
    ] = None
    echo_load_seconds: Annotated[NonNegativeFloat, Option("Number of seconds that loading takes.")] = 0.0
    echo_fault: Annotated[
        Literal["none", "exit_in_load", "out_of_memory_in_load", "raise_in_load", "slow_load"],
        Option("Failure to simulate while loading."),
    ] = "none"
    echo_faults: Annotated[bool, Option("Lets prompts ask for failures, to test clients.")] = False
