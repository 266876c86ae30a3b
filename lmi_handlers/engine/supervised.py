"""The frame of the processes that the supervisor starts: an engine, or the pool that runs in its place."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.file_descriptors import print_to_the_log
from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.engine.heartbeat import explain
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.workers.parent import end_with_parent, ignore_signals, read_settings

logger = logging.getLogger(__name__)


def run_supervised(serve: Callable[[EngineSettings], object]) -> NoReturn:
    """Read the settings on standard input, call `serve` with them, and exit with a status that says how it has ended.

    `serve` may raise `ConfigError` if the model or an option is wrong, and `LoadFailed` if another try may help.
    """
    configure_logging()
    print_to_the_log()
    ignore_signals()
    settings = read_settings(EngineSettings)
    end_with_parent()
    status = _run(serve, settings)
    sys.stderr.flush()
    # Daemon threads may be in native code. Exiting without interpreter shutdown cannot hang on them.
    os._exit(status)


def _run(serve: Callable[[EngineSettings], object], settings: EngineSettings) -> int:
    try:
        serve(settings)
    except (ConfigError, LoadFailed) as error:
        tell("error", str(error))
        explain(settings.heartbeat_path, str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_LOAD_FAILED
    except Exception as error:
        logger.exception("%s died", settings.title)
        explain(settings.heartbeat_path, f"{type(error).__name__}: {error}")
        return 1
    return 0
