"""gunicorn's target: `gunicorn -c python:lmi_handlers.gunicorn_conf lmi_handlers.wsgi`.

A mistake is one line, and gunicorn ends, where `lmi_handlers.app:create_app()` would raise in each worker.
"""

from __future__ import annotations

import sys

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import tell
from lmi_handlers.launch.app import create_app

_BOOT_FAILED = 3
"""The exit status with which a worker tells gunicorn's arbiter not to start another (`Arbiter.WORKER_BOOT_ERROR`)."""

try:
    application = create_app()
except ConfigError as error:
    tell("error", str(error))
    sys.exit(_BOOT_FAILED)
