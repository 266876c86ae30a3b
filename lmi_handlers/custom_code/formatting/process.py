"""The process that runs a model's formatters, for all web workers. It imports the author's code, and nothing else does."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec

from lmi_handlers.config.formatter_code import script_of_adapter
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.file_descriptors import print_to_the_log, read_nothing
from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.custom_code.failures import author_traceback, load_error, named
from lmi_handlers.custom_code.formatting.hang_watch import HangWatch
from lmi_handlers.custom_code.formatting.messages import (
    Begin,
    Call,
    Forget,
    FormatInput,
    Formatted,
    FormattersReady,
    FormattingFailed,
    FromWorker,
    Known,
    Records,
    Tokens,
    ToWorker,
)
from lmi_handlers.custom_code.formatting.scripts import Formatters, ScriptFailed
from lmi_handlers.custom_code.formatting.token_answers import TokenAnswer
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.lmi_modules import provide
from lmi_handlers.engine.adapter_formatters import (
    FormatterChange,
    FormattersChanged,
    LoadFormatters,
    UnloadFormatters,
)
from lmi_handlers.engine.adapter_registry import read_registry
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.workers.channel import Channel, MessageTooLong, ProtocolError
from lmi_handlers.workers.host import Host, WorkerConnection, accepted, listen
from lmi_handlers.workers.parent import end_with_parent, ignore_signals, read_settings

_MAX_WAITING = 1000
"""Messages that wait for the main thread. Further ones stay with the web workers, which limit them."""

_MAX_CAUSE = 2000
"""Characters of an error that a client sees."""

_LOOK_INTERVAL = 0.005

_ALL_KNOW = 10.0
"""Seconds to wait until all web workers have said that they know of a change."""

logger = logging.getLogger("lmi_handlers.custom_code.formatting.process")  # __name__ is "__main__" here


class ConnectedWorker(WorkerConnection[ToWorker, FromWorker]):
    """Puts what a web worker sends into the inbox. `answers` are those that have begun and not ended, by number.

    `known` is the last change that the worker knows.
    """

    def __init__(self, sock: socket.socket, inbox: Inbox, patience: float) -> None:
        super().__init__(Channel(sock, msgspec.msgpack.Decoder(FromWorker)), patience)
        self.answers: dict[int, TokenAnswer] = {}
        self.known = -1
        self._inbox = inbox

    def received(self, message: FromWorker) -> None:
        if isinstance(message, Known):
            self.known = message.change
            return
        self._inbox.put((self, message))
        while self._inbox.qsize() > _MAX_WAITING:  # a formatter does not return: web workers notice soon
            time.sleep(_LOOK_INTERVAL)

    def in_place_of(self, message: ToWorker, error: MessageTooLong) -> list[ToWorker]:
        assert isinstance(message, Formatted)  # noqa: S101  the others are short
        return [FormattingFailed(message.number, f"its result is too long to be sent: {error}")]


Inbox = queue.SimpleQueue[tuple[ConnectedWorker, Call] | tuple["Future[str | None]", FormatterChange]]
"""Calls of web workers, and changes of which an engine tells, with the `Future` of its error."""


class Process:
    """Calls the formatters, one at a time, in the main thread."""

    def __init__(self, formatters: Formatters, watch: HangWatch) -> None:
        self._formatters = formatters
        self._watch = watch
        self._pid = os.getpid()
        self._inbox: Inbox = queue.SimpleQueue()
        self._change = 0
        self._host: Host[ToWorker, ConnectedWorker] | None = None

    def listen(self, path: Path, patience: float) -> None:
        """Accept web workers from now on. One that does not read for `patience` seconds is disconnected."""
        ready = FormattersReady(dict(self._formatters.scripts))
        self._host = Host(path, ready, lambda sock: ConnectedWorker(sock, self._inbox, patience), refused=_end)

    def follow(self, path: Path) -> None:
        """Accept engines from now on, which tell of adapters."""
        sockets = accepted(listen(path), _end)
        threading.Thread(target=self._accept, args=(sockets,), name="adapters", daemon=True).start()

    def run(self) -> None:
        """Answer messages, for ever."""
        while True:
            sender, message = self._inbox.get()
            if isinstance(sender, Future):
                assert isinstance(message, FormatterChange)  # noqa: S101  see `Inbox`
                self._watch.begin()
                error = self._changed(message)
                self._watch.end()
                self._end_copies()
                sender.set_result(error)
            else:
                assert not isinstance(message, FormatterChange)  # noqa: S101  see `Inbox`
                self._answer(sender, message)

    def _accept(self, sockets: Iterator[socket.socket]) -> None:
        for sock in sockets:
            threading.Thread(target=self._serve_engine, args=(sock,), name="adapter", daemon=True).start()

    def _serve_engine(self, sock: socket.socket) -> None:
        """Make the change of which an engine tells, and answer once all web workers know of it."""
        channel: Channel[FormattersChanged, FormatterChange] = Channel(sock, msgspec.msgpack.Decoder(FormatterChange))
        try:
            for message in channel.receive():
                done: Future[str | None] = Future()
                self._inbox.put((done, message))
                error = done.result()
                self._wait_until_known()
                channel.send(FormattersChanged(error))
        except OSError:
            pass  # the engine has ended
        except ProtocolError:
            logger.exception("an engine sent an invalid message")
        finally:
            channel.close()

    def _changed(self, message: FormatterChange) -> str | None:
        """Make a change, in the main thread. Returns why that is not possible, if so."""
        formatters = self._formatters
        match message:
            case UnloadFormatters():
                if not formatters.unload(message.adapter, message.version):
                    return None
            case LoadFormatters() if formatters.knows(message.script.adapter, message.version):
                return None
            case LoadFormatters(only_asks=True):
                return "not loaded"
            case LoadFormatters():
                try:
                    formatters.load(message.script, message.version)
                except ScriptFailed as failed:
                    return load_error(failed.error, failed.code).message
        self._change += 1
        if self._host is not None:
            self._host.announce(FormattersReady(dict(formatters.scripts), self._change))
        return None

    def _wait_until_known(self) -> None:
        """Wait until every web worker has said that it knows of the last change, but no longer than `_ALL_KNOW`."""
        deadline = time.monotonic() + _ALL_KNOW
        while self._host is not None and time.monotonic() < deadline:
            if all(worker.known >= self._change for worker in self._host.connections):
                return
            time.sleep(_LOOK_INTERVAL)

    def _answer(self, worker: ConnectedWorker, message: Call) -> None:
        self._watch.begin()
        try:
            reply = self._reply(worker, message)
        except BaseException as error:  # noqa: BLE001  the request fails, whatever the code has raised
            worker.answers.pop(message.number, None)
            logger.error("a formatter failed", extra={"exception": author_traceback(error)})
            reply = FormattingFailed(message.number, named(error)[:_MAX_CAUSE])
        finally:
            self._watch.end()
        self._end_copies()
        if reply is not None:
            worker.send(reply)

    def _end_copies(self) -> None:
        if os.getpid() != self._pid:  # the code has forked, and this is not the process that is connected
            os._exit(0)

    def _reply(self, worker: ConnectedWorker, message: Call) -> ToWorker | None:
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
        tokenizer = LazyTokenizer(*(engine.bundle_dir for engine in settings.each))
        formatters = Formatters(code, tokenizer, kept_for=settings.properties.predict_timeout + _ALL_KNOW)
    except ScriptFailed as failed:
        return _tell(failed)
    if only_loads:
        return 0
    process = Process(formatters, HangWatch(settings.properties.formatter_timeout, settings.formatter_hang_path))
    if code.follows_adapters:
        _load_registered(formatters, Path(settings.runtime_dir))
    process.listen(settings.formatter_socket_path, settings.properties.stall_timeout)
    if code.follows_adapters:
        process.follow(settings.formatter_changes_path)
    logger.info("formatters ready", extra={"seconds": round(time.monotonic() - begun, 3)})
    process.run()
    return 0


def _load_registered(formatters: Formatters, runtime_dir: Path) -> None:
    """Load the formatters of the adapters that came before this process was started. Without theirs, requests would be wrong."""
    for name, adapter in (read_registry(runtime_dir) or {}).items():
        if adapter.is_own:
            continue
        try:
            script = script_of_adapter(Path(adapter.folder), name)
            if script is None:
                formatters.unload(name)
            else:
                formatters.load(script, adapter.version)
        except (ConfigError, ScriptFailed) as error:
            cause = load_error(error.error, error.code).message if isinstance(error, ScriptFailed) else str(error)
            logger.error("the formatters of an adapter cannot be loaded again", extra={"adapter": name, "cause": cause})
            formatters.refuse(name, adapter.version, cause)


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
