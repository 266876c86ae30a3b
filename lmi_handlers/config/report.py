"""The tables of `lmi check`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.environment import DeclaredVariable, shown
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.properties import DEFAULT, LoadedProperties, Setting
from lmi_handlers.config.registry import SERVER


def render_settings(loaded: LoadedProperties, backend: BackendDeclaration, *, show_all: bool) -> str:
    """Return the tables that `lmi check` prints: what is set and where, and with `show_all` all defaults."""

    def table(settings: Iterable[Setting]) -> list[str]:
        return _rows(
            (item.key, item.text or "-", item.source, effect_of(item, backend, loaded.properties)) for item in settings
        )

    parts = []
    if loaded.explicit:
        parts.append("\n".join(["Set", *table(loaded.explicit)]))
    if show_all:
        parts.append("\n".join(["Defaults", *table(loaded.defaults)]))
    else:
        parts.append(f"{len(loaded.defaults)} options have their defaults; `lmi check --all` shows them.")
    return "\n\n".join(parts) + "\n"


def render_variables(
    declared: Iterable[DeclaredVariable], environ: Mapping[str, str], flags: Collection[str], *, show_all: bool
) -> str:
    """Return the table of the settings of the server that are set, or of all of them. It is "" if there are none.

    `flags` has the names of the variables that the command line sets.
    """
    rows = []
    for item in declared:
        name, text = item.given(environ) or ("", "")
        if name:
            source = item.variable.flag if name in flags else f"environment variable {name}"
            rows.append((item.variable.name, shown(name, text), source))
        elif show_all:
            rows.append((item.variable.name, item.default_text or "-", DEFAULT))
    return "\n".join(["Server", *_rows(rows), ""]) if rows else ""


def _rows(cells: Iterable[tuple[str, ...]]) -> list[str]:
    """Return one line per row, with columns of equal width."""
    rows = [*cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def effect_of(setting: Setting, backend: BackendDeclaration, properties: ServingProperties) -> str:
    """Return who reads a setting if `backend` serves the model, or why nobody does."""
    name = setting.key.removeprefix("option.")
    if backend.passes_options and name in backend.passed_on(properties):
        return f"passed on to {backend.name}"
    if setting.refused:
        return "refused"
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
