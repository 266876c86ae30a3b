"""The options that only the OpenVINO backend has."""

from __future__ import annotations

from backends.paged.options import PagedOptions


class OpenVinoOptions(PagedOptions, frozen=True, kw_only=True):
    """Options of OpenVINO's KV cache."""
