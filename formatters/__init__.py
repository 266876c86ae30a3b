"""What answers look like on the wire. `FORMATTERS` maps a name to where its class lives."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from formatters.base import Formatter
from lmi_handlers.errors import ConfigError

FORMATTERS: dict[str, str] = {
    "json": "formatters.lmi:JsonFormatter",
    "jsonlines": "formatters.lmi:JsonLinesFormatter",
    "sse": "formatters.lmi:SseFormatter",
    "tgi_json": "formatters.lmi:TgiJsonFormatter",
    "tgi_jsonlines": "formatters.lmi:TgiJsonLinesFormatter",
    "tgi_sse": "formatters.lmi:TgiSseFormatter",
    "dynamic_json": "formatters.dynamic:DynamicJsonFormatter",
    "dynamic_jsonlines": "formatters.dynamic:DynamicJsonLinesFormatter",
}

ENTRY_POINT_GROUP = "lmi_handlers.formatters"


def available_formatters() -> dict[str, str]:
    """`FORMATTERS` and what other distributions register under the entry point group `lmi_handlers.formatters`."""
    return FORMATTERS | {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def load_formatter_class(name: str) -> type[Formatter]:
    """Import the formatter called `name`. Raises `ConfigError` for an unknown name or one that cannot be imported."""
    formatters = available_formatters()
    if name not in formatters:
        raise ConfigError(f"unknown output formatter {name!r}; known: {', '.join(sorted(formatters))}")
    module_name, _, class_name = formatters[name].partition(":")
    try:
        loaded: object = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a third party's module may fail in any way
        raise ConfigError(f"output formatter {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Formatter)):
        raise ConfigError(f"output formatter {name!r} is not a formatters.base.Formatter: {module_name}:{class_name}")
    return loaded
