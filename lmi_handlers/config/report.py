"""The tables of `lmi check`."""

from __future__ import annotations

from collections.abc import Iterable

from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.properties import LoadedProperties, Setting
from lmi_handlers.config.registry import SERVER


def render_settings(loaded: LoadedProperties, backend: BackendDeclaration, *, show_all: bool) -> str:
    """Return the tables that `lmi check` prints: what is set and where, and with `show_all` all defaults."""
    passed_on = frozenset(backend.passed_on(loaded.properties)) if backend.passes_options else frozenset()
    parts = []
    if loaded.explicit:
        parts.append("\n".join(["Set", *_table(loaded.explicit, backend.name, passed_on)]))
    if show_all:
        parts.append("\n".join(["Defaults", *_table(loaded.defaults, backend.name, passed_on)]))
    else:
        parts.append(f"{len(loaded.defaults)} options have their defaults; `lmi check --all` shows them.")
    return "\n\n".join(parts) + "\n"


def _table(settings: Iterable[Setting], backend: str, passed_on: frozenset[str]) -> list[str]:
    rows = [
        (
            item.key,
            item.text or "-",
            item.source,
            f"passed on to {backend}" if item.key.removeprefix("option.") in passed_on else _effect(item, backend),
        )
        for item in settings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
        for row in rows
    ]


def _effect(setting: Setting, backend: str) -> str:
    if not setting.read_by:
        return setting.note if setting.note.startswith("unknown") else f"accepted, no effect here: {setting.note}"
    readers = ", ".join(setting.read_by)
    if backend in setting.read_by or SERVER in setting.read_by:
        return f"read by {readers}"
    return f"no effect on backend {backend}, read by {readers}"
