"""A process that runs a model's own code, for the pool that has started it."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.file_descriptors import print_to_the_log, read_nothing
from lmi_handlers.core.log import configure_logging
from lmi_handlers.custom_code.async_handler import AsyncHandler
from lmi_handlers.custom_code.call import is_asynchronous, to_outputs
from lmi_handlers.custom_code.connection import Connection
from lmi_handlers.custom_code.failures import load_error, load_timeout
from lmi_handlers.custom_code.handler import Handler
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.lmi_modules import provide
from lmi_handlers.custom_code.messages import CodeSettings
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.workers.parent import end_with_parent, read_settings


def load_handler(load: CodeSettings) -> Handler | AsyncHandler:
    """Get the function and call it once without content. Raises whatever the code raises."""
    code = load.code
    function = _function(code)
    handler = AsyncHandler(function, code) if is_asynchronous(function) else Handler(function, code)
    first = to_outputs(handler.call(Input(load.properties, function=code.function)))
    if isinstance(first, Output) and first.stream_content is not None:
        handler.exhaust(first.stream_content)  # a generator does nothing before
    elif isinstance(first, Output) and first.code >= 300:
        raise ConfigError(
            f"{code.path}: {code.function} answered the first call, which has the options and no content, with the status "
            f"{first.code}: {first.data().decode(errors='replace') or first.message}"
        )
    return handler


def serve(load: CodeSettings, connection: Connection) -> int:
    """Load the code and answer requests until the pool is gone. Returns 1 if the code cannot be used."""
    left = load.deadline - time.monotonic()
    watch = threading.Timer(left, lambda: connection.send(load_timeout(threading.main_thread(), load.code)))
    watch.daemon = True
    watch.start()
    try:
        handler = load_handler(load)
    except BaseException as error:  # noqa: BLE001  sys.exit too: the pool must know where
        connection.send(load_error(error, load.code))
        return 1
    watch.cancel()
    handler.serve(connection)
    return 1  # the code has stopped the event loop


def _function(code: CustomCode) -> Callable[[Input], Any]:
    module, _, name = code.loader.partition(":")
    function: Callable[[Input], Any] = getattr(importlib.import_module(module), name)(code)
    return function


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM in this process, whose parent decides when it ends, but not in what the code starts.

    Ignored signals would be inherited, and the code could not end its own processes.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=functools.partial(signal.signal, number, signal.SIG_DFL))


def main() -> int:
    """Entry point of `python -m lmi_handlers.custom_code.child <descriptor of the connection>`.

    Reads its settings, `CodeSettings`, on standard input.
    """
    configure_logging()
    ignore_signals()
    load = read_settings(CodeSettings)
    end_with_parent()
    read_nothing()
    print_to_the_log()
    return serve(load, Connection(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__mp_main__":  # a process that the code has spawned, which gets the same `sys.path`, but no finders
    provide()
if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as end:  # of the code
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  the code's, or the connection is broken
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the code do not keep the process
