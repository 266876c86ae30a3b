"""The process that manages the models of a server with several: `python -m lmi_handlers.launch.model_manager`.

A child of gunicorn's arbiter, which ends with it. It reads its settings on standard input.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.engine.runtime_folder import end_server, watch
from lmi_handlers.models.manager import Manager, Plan
from lmi_handlers.models.memory import free_for, needed_memory
from lmi_handlers.models.registry import RegisteredModel
from lmi_handlers.models.settings import ManagerSettings
from lmi_handlers.preflight.checks import mistakes, warnings
from lmi_handlers.preflight.configuration import encode_configuration, examine_configuration, model_environ
from lmi_handlers.workers.parent import ignore_signals, read_settings, wait_for_end_of_parent


def plan(entry: RegisteredModel, runtime_dir: Path) -> Plan:
    """Read and check the configuration of a model. Raises `ConfigError`."""
    environ = model_environ(os.environ, entry.directory)
    configuration = examine_configuration(environ, {"option.model_name": entry.name} | entry.options)
    if configuration.is_default_model and not configuration.loaded.mistakes:
        raise ConfigError(f"{entry.directory} holds no model, and option.model_id is not set")
    found = tuple(f"model {entry.name}: {warning}" for warning in warnings(configuration))
    if causes := mistakes(configuration, environ):
        for warning in found:
            tell("warning", warning)
        raise ConfigError("; ".join(causes))
    engine = configuration.engine_settings(str(runtime_dir), time.monotonic(), model=entry.name)
    return Plan(
        engine,
        encode_configuration(configuration),
        needed_memory(configuration.properties, engine),
        lambda: free_for(configuration.backend),
        found,
    )


def main() -> None:
    """Manage the models until the server ends."""
    configure_logging()
    ignore_signals()  # requests in flight must finish first; then the pipe closes
    parent = os.getppid()
    settings = read_settings(ManagerSettings)
    manager = Manager(settings, plan)
    threading.Thread(target=_end_with_parent, args=(manager,), daemon=True).start()
    folder = Path(settings.runtime_dir)
    watch(folder, manager.needed, lambda: end_server(folder, parent))
    try:
        manager.run()
    except BaseException:
        end_server(folder, parent)
        raise


def _end_with_parent(manager: Manager) -> None:
    """Kill the engines and exit when standard input ends, because the arbiter and all its workers are gone."""
    wait_for_end_of_parent()
    manager.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
