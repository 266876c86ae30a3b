"""Wire formats for responses. `FORMATTERS` maps each name to the location of its class."""

from __future__ import annotations

from formatters.base import Formatter
from lmi_handlers.core.plugins import load_class, with_entry_points

FORMATTERS: dict[str, str] = {
    "json": "formatters.lmi.rolling:JsonFormatter",
    "jsonlines": "formatters.lmi.rolling:JsonLinesFormatter",
    "sse": "formatters.lmi.rolling:SseFormatter",
    "tgi_json": "formatters.tgi.generate:TgiJsonFormatter",
    "tgi_array": "formatters.tgi.generate:TgiArrayFormatter",
    "tgi_sse": "formatters.tgi.generate:TgiSseFormatter",
    "mindie_json": "formatters.mindie.generate:MindieJsonFormatter",
    "mindie_sse": "formatters.mindie.generate:MindieSseFormatter",
    "dynamic_json": "formatters.lmi.dynamic:DynamicJsonFormatter",
    "dynamic_jsonlines": "formatters.lmi.dynamic:DynamicJsonLinesFormatter",
}

ENTRY_POINT_GROUP = "lmi_handlers.formatters"


def available_formatters() -> dict[str, str]:
    """Return `FORMATTERS` plus the formatters from other packages' `lmi_handlers.formatters` entry points."""
    return with_entry_points(FORMATTERS, ENTRY_POINT_GROUP)


def load_formatter_class(name: str) -> type[Formatter]:
    """Import the formatter called `name`. Raises `ConfigError` if it is unknown or cannot be imported."""
    # mypy does not accept an abstract class as an argument.
    return load_class("output formatter", available_formatters(), name, Formatter)  # type: ignore[type-abstract]
