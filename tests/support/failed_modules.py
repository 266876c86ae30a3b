"""Prints the modules whose tests failed in the last run, for `.ci/run`, which runs them again.

A module is run as a whole: what its tests leave open fails its last test, and only after them. Nothing is printed, and the
exit status is 1, for a run that was broken off, and for one in which more failed than a busy machine breaks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MOST = 10
TESTS_FAILED = 1
"""pytest's exit status of a run that came to its end."""


def main(cache: Path) -> str | None:
    """Print the modules. `cache` is pytest's folder. Returns why there are none to run again, or None."""
    try:
        status = json.loads((cache / "v" / "lmi" / "exit_status").read_text())
        failed = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError as error:
        return f"no run has failed: there is no {error.filename}"
    modules = sorted({name.partition("::")[0] for name in failed})
    if status != TESTS_FAILED:
        return f"the run was broken off with pytest's exit status {status}"
    if len(modules) > MOST:
        return f"tests of {len(modules)} modules have failed, which is no accident"
    print(*modules)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(".pytest_cache")))
