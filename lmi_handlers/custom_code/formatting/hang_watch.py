"""Ends the process if a formatter does not return, and says where it hangs."""

from __future__ import annotations

import faulthandler
import threading
import time
from pathlib import Path


class HangWatch:
    """Writes the stacks of all threads to `file` and exits with status 1 once a call takes more than `limit` seconds.

    The standard library's timer for that does not need the GIL, which a regular expression may hold for ever. A thread
    sets it back as long as the main thread gets on.
    """

    def __init__(self, limit: float, file: Path) -> None:
        self._limit = limit
        self._file = file.open("w")
        self._calls = 0
        self._calling = False
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self) -> None:
        """Note that a formatter is called."""
        self._calls += 1
        self._calling = True

    def end(self) -> None:
        """Note that no formatter is being called."""
        self._calling = False

    def _run(self) -> None:
        seen = -1
        while True:
            if not self._calling or self._calls != seen:
                seen = self._calls
                faulthandler.dump_traceback_later(self._limit, exit=True, file=self._file)
            time.sleep(min(1.0, self._limit / 5))
