"""The options that only the transformers backend has."""

from __future__ import annotations

from typing import Annotated

from backends.paged.options import PagedOptions
from lmi_handlers.config.option import Option


class TransformersOptions(PagedOptions, frozen=True, kw_only=True):
    """Options of loading with transformers, and of the KV cache."""

    device_map: Annotated[
        str | None,
        Option(
            "Device for the weights: `auto`, `cpu`, `cuda`, ... Defaults to `cuda`, and with several GPUs for an engine to "
            "`auto`, which divides the layers among them."
        ),
    ] = None
