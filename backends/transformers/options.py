"""The options that only the transformers backend has."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.config.option import Option

DEFAULT_BATCH_SIZE = 32


class TransformersOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How transformers loads the weights."""

    device_map: Annotated[str | None, Option("Device for the weights: `auto`, `cpu`, `cuda`, ...")] = None
    low_cpu_mem_usage: Annotated[bool | None, Option("Loads the weights without a second copy in memory.")] = None
