"""What answers look like on the wire. `FORMATTERS` maps a name to where its class lives."""

from __future__ import annotations

from formatters.base import Formatter
from lmi_handlers.core.plugins import load_class, with_entry_points

FORMATTERS: dict[str, str] = {
    "json": "formatters.lmi:JsonFormatter",
    "jsonlines": "formatters.lmi:JsonLinesFormatter",
    "sse": "formatters.lmi:SseFormatter",
    "tgi_json": "formatters.tgi:TgiJsonFormatter",
    "tgi_array": "formatters.tgi:TgiArrayFormatter",
    "tgi_sse": "formatters.tgi:TgiSseFormatter",
    "mindie_json": "formatters.mindie:MindieJsonFormatter",
    "mindie_sse": "formatters.mindie:MindieSseFormatter",
    "dynamic_json": "formatters.dynamic:DynamicJsonFormatter",
    "dynamic_jsonlines": "formatters.dynamic:DynamicJsonLinesFormatter",
}

ENTRY_POINT_GROUP = "lmi_handlers.formatters"


def available_formatters() -> dict[str, str]:
    """`FORMATTERS` and what other distributions register under the entry point group `lmi_handlers.formatters`."""
    return with_entry_points(FORMATTERS, ENTRY_POINT_GROUP)


def load_formatter_class(name: str) -> type[Formatter]:
    """Import the formatter called `name`. Raises `ConfigError` where there is none, or none that can be imported."""
    return load_class("output formatter", available_formatters(), name, Formatter)  # type: ignore[type-abstract]  # likewise
