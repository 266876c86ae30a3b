"""What formatters write."""

from __future__ import annotations

from formatters.base import Formatter
from lmi_handlers.core.outputs import TextDelta


def written(formatter: Formatter, *deltas: TextDelta) -> str:
    """The whole answer."""
    return (b"".join(formatter.feed(delta) for delta in deltas) + formatter.finish()).decode()
