"""The process that runs a model's formatters, for all web workers. It imports the author's code, and nothing else does."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import time
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.file_descriptors import print_to_the_log, read_nothing
from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.custom_code.failures import author_traceback, load_error, named
from lmi_handlers.custom_code.formatting.hang_watch import HangWatch
from lmi_handlers.custom_code.formatting.messages import (
    Begin,
    Forget,
    FormatInput,
    Formatted,
    FormattersReady,
    FormattingFailed,
    FromWorker,
    Records,
    Tokens,
    ToWorker,
)
from lmi_handlers.custom_code.formatting.scripts import Formatters, ScriptFailed
from lmi_handlers.custom_code.formatting.token_answers import TokenAnswer
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.lmi_modules import provide
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.workers.channel import Channel, MessageTooLong
from lmi_handlers.workers.host import Host, WorkerConnection
from lmi_handlers.workers.parent import end_with_parent, ignore_signals, read_settings

_MAX_WAITING = 1000
"""Messages that wait for the main thread. Further ones stay with the web workers, which limit them."""

_MAX_CAUSE = 2000
"""Characters of an error that a client sees."""

_LOOK_INTERVAL = 0.005

logger = logging.getLogger("lmi_handlers.custom_code.formatting.process")  # __name__ is "__main__" here


class ConnectedWorker(WorkerConnection[ToWorker, FromWorker]):
    """Puts what a web worker sends into the inbox. `answers` are those that have begun and not ended, by number."""

    def __init__(self, sock: socket.socket, inbox: Inbox, patience: float) -> None:
        super().__init__(Channel(sock, msgspec.msgpack.Decoder(FromWorker)), patience)
        self.answers: dict[int, TokenAnswer] = {}
        self._inbox = inbox

    def received(self, message: FromWorker) -> None:
        self._inbox.put((self, message))
        while self._inbox.qsize() > _MAX_WAITING:  # a formatter does not return: web workers notice soon
            time.sleep(_LOOK_INTERVAL)

    def in_place_of(self, message: ToWorker, error: MessageTooLong) -> list[ToWorker]:
        assert isinstance(message, Formatted)  # noqa: S101  the others are short
        return [FormattingFailed(message.number, f"its result is too long to be sent: {error}")]


Inbox = queue.SimpleQueue[tuple[ConnectedWorker, FromWorker]]


class Process:
    """Calls the formatters, one at a time, in the main thread."""

    def __init__(self, formatters: Formatters, watch: HangWatch) -> None:
        self._formatters = formatters
        self._watch = watch
        self._pid = os.getpid()
        self._inbox: Inbox = queue.SimpleQueue()

    def listen(self, path: Path, patience: float) -> None:
        """Accept web workers from now on. One that does not read for `patience` seconds is disconnected."""
        ready = FormattersReady(self._formatters.scripts)
        Host(path, ready, lambda sock: ConnectedWorker(sock, self._inbox, patience), refused=_end)

    def run(self) -> None:
        """Answer messages, for ever."""
        while True:
            self._answer(*self._inbox.get())

    def _answer(self, worker: ConnectedWorker, message: FromWorker) -> None:
        self._watch.begin()
        try:
            reply = self._reply(worker, message)
        except BaseException as error:  # noqa: BLE001  the request fails, whatever the code has raised
            worker.answers.pop(message.number, None)
            logger.error("a formatter failed", extra={"exception": author_traceback(error)})
            reply = FormattingFailed(message.number, named(error)[:_MAX_CAUSE])
        finally:
            self._watch.end()
        if os.getpid() != self._pid:  # the code has forked, and this is not the process that is connected
            os._exit(0)
        if reply is not None:
            worker.send(reply)

    def _reply(self, worker: ConnectedWorker, message: FromWorker) -> ToWorker | None:
        match message:
            case Tokens():
                answer = worker.answers.get(message.number)
                if answer is None:  # it has failed, and the web worker did not know yet
                    return None
                data = answer.feed(message)
                if answer.ended:
                    del worker.answers[message.number]
                return Formatted(message.number, data)
            case Records():
                return Formatted(message.number, self._formatters.format_records(message))
            case FormatInput():
                return Formatted(message.number, *self._formatters.format_input(message))
            case Begin():
                worker.answers[message.number] = self._formatters.begin(message)
            case Forget():
                worker.answers.pop(message.number, None)
        return None


def _end() -> None:
    """End the process: the model's code has opened too many files."""
    logger.critical("no web worker can connect any more", exc_info=True)
    os._exit(1)


def main() -> int:
    """Entry point of the process. Reads its settings on standard input.

    With the argument "check", it only loads the files. Without, it then listens until its parent ends.
    """
    configure_logging()
    ignore_signals()
    settings = read_settings(EngineSettings)
    code = settings.formatters
    assert code is not None  # noqa: S101  otherwise there is no such process
    end_with_parent()
    read_nothing()
    print_to_the_log()
    begun, only_loads = time.monotonic(), sys.argv[1:] == ["check"]  # the files see arguments of their own
    try:
        formatters = Formatters(code, LazyTokenizer(*(engine.bundle_dir for engine in settings.each)))
    except ScriptFailed as failed:
        return _tell(failed)
    if only_loads:
        return 0
    process = Process(formatters, HangWatch(settings.properties.formatter_timeout, settings.formatter_hang_path))
    process.listen(settings.formatter_socket_path, settings.properties.stall_timeout)
    logger.info("formatters ready", extra={"seconds": round(time.monotonic() - begun, 3)})
    process.run()
    return 0


def _tell(failed: ScriptFailed) -> int:
    """Say why a file cannot be used. Returns the exit status."""
    error = load_error(failed.error, failed.code)
    if not isinstance(failed.error, ConfigError):
        logger.error("the model's formatters cannot be loaded", extra={"exception": error.traceback or None})
    tell("error", error.message)
    return EXIT_LOAD_FAILED if error.temporary else EXIT_CONFIG


if __name__ == "__mp_main__":  # as in `child`
    provide()
if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except SystemExit as end:  # of the code
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        logger.critical("the process that runs the model's formatters died", exc_info=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the code do not keep the process
