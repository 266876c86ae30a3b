"""The program of a replica's server: gunicorn on a Unix socket. It ends with the replica, which starts it.

    python -m lmi_handlers.ray.child SOCKET

A Unix socket needs no free port, and its directory keeps other users out.
"""

from __future__ import annotations

import os
import signal
import sys

from lmi_handlers.workers.parent import end_with_parent
from lmi_handlers.workers.program import command


def main(socket_path: str) -> None:
    """Become the server."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT in what it starts
    gunicorn = ("-c", "python:lmi_handlers.gunicorn_conf", "--bind", f"unix:{socket_path}")
    program = command("lmi_handlers.launch.gunicorn_app", *gunicorn, "lmi_handlers.app:create_app()")
    os.execv(sys.executable, program)  # noqa: S606  our own module, no shell


if __name__ == "__main__":
    main(sys.argv[1])
