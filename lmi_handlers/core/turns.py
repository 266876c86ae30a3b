"""Lets long work yield: a web worker serves all its clients on one event loop."""

from __future__ import annotations

import time


def give_way() -> None:
    """Let every other request of this worker that is ready run. Call it after about each millisecond of work."""
    time.sleep(0)  # gevent's version once gunicorn has patched it; with threads, it releases the GIL
