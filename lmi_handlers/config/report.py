"""The tables of `lmi check`."""

from __future__ import annotations

from collections.abc import Iterable

from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.properties import LoadedProperties, Setting
from lmi_handlers.config.registry import SERVER


def render_settings(loaded: LoadedProperties, backend: BackendDeclaration, *, show_all: bool) -> str:
    """Return the tables that `lmi check` prints: what is set and where, and with `show_all` all defaults."""

    def table(settings: Iterable[Setting]) -> list[str]:
        rows = [
            (item.key, item.text or "-", item.source, effect_of(item, backend, loaded.properties)) for item in settings
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return [
            "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
            for row in rows
        ]

    parts = []
    if loaded.explicit:
        parts.append("\n".join(["Set", *table(loaded.explicit)]))
    if show_all:
        parts.append("\n".join(["Defaults", *table(loaded.defaults)]))
    else:
        parts.append(f"{len(loaded.defaults)} options have their defaults; `lmi check --all` shows them.")
    return "\n\n".join(parts) + "\n"


def effect_of(setting: Setting, backend: BackendDeclaration, properties: ServingProperties) -> str:
    """Return who reads a setting if `backend` serves the model, or why nobody does."""
    name = setting.key.removeprefix("option.")
    if backend.passes_options and name in backend.passed_on(properties):
        return f"passed on to {backend.name}"
    if not setting.read_by:
        return setting.note if setting.note.startswith("unknown") else f"accepted, no effect here: {setting.note}"
    if (reason := backend.without_effect.get(name)) is not None:
        return f"no effect on backend {backend.name}: {reason}"
    if (reason := properties.ignored.get(setting.key)) is not None and backend.name not in setting.read_by:
        return f"no effect: {reason}"
    readers = ", ".join(setting.read_by)
    if backend.name in setting.read_by or SERVER in setting.read_by:
        return f"read by {readers}"
    return f"no effect on backend {backend.name}, read by {readers}"
