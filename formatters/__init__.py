"""Wire formats for responses. `FORMATTERS` maps each name to the location of its class."""

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
    """Return `FORMATTERS` plus the formatters from other packages' `lmi_handlers.formatters` entry points."""
    return with_entry_points(FORMATTERS, ENTRY_POINT_GROUP)


def load_formatter_class(name: str) -> type[Formatter]:
    """Import the formatter called `name`. Raises `ConfigError` if it is unknown or cannot be imported."""
    # mypy does not accept an abstract class as an argument.
    return load_class("output formatter", available_formatters(), name, Formatter)  # type: ignore[type-abstract]
