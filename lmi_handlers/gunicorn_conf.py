"""gunicorn's configuration: `gunicorn -c python:lmi_handlers.gunicorn_conf "lmi_handlers.app:create_app()"`.

The arbiter starts the engine's supervisor unless `LMI_ENGINE_SOCKET` names an engine that runs already. It ends with the
arbiter; should it give up on the engine, the arbiter ends too, with a failure as its exit status.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.engine.settings import SOCKET_VARIABLE, EngineSettings
from lmi_handlers.log import JsonLines, configure_logging
from lmi_handlers.properties import load_properties
from lmi_handlers.server_settings import ServerSettings, default_workers

_settings = ServerSettings.from_environ(os.environ)
_loaded = load_properties(_settings.model_dir, os.environ)

bind = f"{_settings.host}:{_settings.port}"
workers = _settings.workers or _loaded.properties.web_workers or default_workers()
worker_class = "gevent"
worker_connections = 4096
threads = 64  # for those who choose gthread
timeout = 0  # a request may take as long as predict_timeout says; a worker's loop is never the one to wait
graceful_timeout = 27
keepalive = 75
control_socket_disable = True
limit_request_line = 8190
logconfig_dict = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonLines}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
    "loggers": {
        "gunicorn.error": {"level": "WARNING", "handlers": [], "propagate": True},
        "gunicorn.access": {"level": "CRITICAL", "handlers": [], "propagate": False},
    },
}

DRAIN_SECONDS = 25.0
"""After a SIGTERM, what is still running then gets a well-formed error; gunicorn's own patience ends a little later."""

_engine: EngineSettings | None = None


def on_starting(server: Any) -> None:
    """Start the engine, which loads while the workers boot."""
    global _engine
    configure_logging()
    if SOCKET_VARIABLE in os.environ:
        return
    _engine = EngineSettings(runtime_dir=tempfile.mkdtemp(prefix="lmi-"), properties=_loaded.properties)
    os.environ[SOCKET_VARIABLE] = str(_engine.socket_path)
    supervisor = subprocess.Popen([sys.executable, "-m", "lmi_handlers.engine.supervisor"], stdin=subprocess.PIPE)
    assert supervisor.stdin is not None  # noqa: S101  follows from stdin=PIPE
    supervisor.stdin.write(msgspec.json.encode(_engine) + b"\n")
    supervisor.stdin.flush()
    # The pipe stays open for as long as this process, or a worker forked from it, lives: that is the engine's lifeline.
    server.lmi_supervisor = supervisor


def post_worker_init(worker: Any) -> None:
    """Watch for the worker's shutdown, which gunicorn announces by a flag only."""

    def watch() -> None:
        while worker.alive:
            time.sleep(0.2)
        worker.wsgi.extensions["lmi_model"].drain(DRAIN_SECONDS)

    threading.Thread(target=watch, daemon=True).start()


def on_exit(server: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Clean up; fail if the engine was what ended the server."""
    if _engine is None:
        return
    failed = _engine.failure_path.exists()
    shutil.rmtree(Path(_engine.runtime_dir), ignore_errors=True)
    if failed:
        sys.exit(1)
