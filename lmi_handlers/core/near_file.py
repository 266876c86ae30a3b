"""Finds the file that somebody meant who wrote its name wrongly."""

from __future__ import annotations

import difflib
import itertools
import os
from pathlib import Path

_MOST_NAMES = 5000
"""Names of a folder that are compared: enough for one of models, and a moment's work."""

_LIKENESS = 0.75


def near_file(path: Path) -> str:
    """Return the path of an existing file or folder whose path is nearly `path`, or "". Any part of it may be wrong."""
    lost = next((part for part in (*reversed(path.parents), path) if not os.path.lexists(part)), None)
    if lost is None:
        return ""
    try:
        with os.scandir(lost.parent) as entries:
            names = {entry.name.lower(): entry.name for entry in itertools.islice(entries, _MOST_NAMES)}
    except OSError:
        return ""
    close = difflib.get_close_matches(lost.name.lower(), names, n=1, cutoff=_LIKENESS)
    if not close:
        return ""
    found = lost.parent / names[close[0]] / path.relative_to(lost)
    return str(found) if os.path.lexists(found) else near_file(found)


def did_you_mean(*paths: Path) -> str:
    """Return the end of a message about paths that do not exist: a near one, or "" if there is none."""
    found = next(filter(None, map(near_file, paths)), "")
    return f"; did you mean {found}?" if found else ""
