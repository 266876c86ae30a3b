"""Taking turns: a web worker serves every client on one event loop, so long work lets the others go on in between."""

from __future__ import annotations

import time


def give_way() -> None:
    """Let every other request of this worker that is ready to go on do so. Call it about every millisecond of work."""
    time.sleep(0)  # gevent's once gunicorn has patched it; with threads, a moment without the GIL
