"""The engine process: loads one model, then serves web workers over a Unix socket until its parent is gone."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends import load_backend_class
from backends.base import Backend, ModelFiles
from backends.selection import select_backend
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, EngineDead, LoadFailed
from lmi_handlers.engine.adapters import find_adapters
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.channel import MessageTooLong, engine_end
from lmi_handlers.engine.heartbeat import CPU_PATIENCE, PULSE_INTERVAL, Heartbeat
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import Abort, EngineInfo, EngineMessage, Failed, Loading, Outputs, Ready
from lmi_handlers.engine.model_store import resolve_model
from lmi_handlers.engine.outbox import Outbox
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings, read_line
from lmi_handlers.log import configure_logging, tell
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.text.bundle import build_byte_bundle, build_text_bundle, read_chat_template
from lmi_handlers.text.output_parsers.reasoning import choose_reasoning_format

EXIT_STUCK = 70
_WATCH_INTERVAL = 0.2
_LOAD_INTERVAL = 0.1
_ACCEPT_PAUSE = 1.0
_FLUSH_TIMEOUT = 1.0

logger = logging.getLogger("lmi_handlers.engine.process")  # __name__ is "__main__" here


class WorkerConnection:
    """One connected web worker. A separate thread sends its messages, so a slow worker delays nobody else.

    `sending_since` is the monotonic time at which the current message was started, None between messages.
    """

    def __init__(self, sock: socket.socket, inbox: Inbox, on_gone: Callable[[WorkerConnection], None]) -> None:
        self._channel = engine_end(sock)
        self._inbox = inbox
        self._on_gone = on_gone
        self._outbox = Outbox()
        self.sending_since: float | None = None
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: EngineMessage) -> None:
        """Queue a message. Never blocks, and does nothing if the worker is gone."""
        self._outbox.put(message)

    def finish(self) -> None:
        """Accept no more messages, because the process ends."""
        self._outbox.put(None)

    def flush(self, timeout: float) -> None:
        """Wait until everything queued before `finish` has been written."""
        self._writer.join(timeout)

    def close(self) -> None:
        """Close the connection. The reader tells the loop."""
        self._channel.close()

    def _write(self) -> None:
        try:
            while True:
                for message in self._outbox.take():
                    if message is None:
                        return
                    self.sending_since = time.monotonic()
                    self._send(message)
                    self.sending_since = None
        except OSError:
            pass  # the worker is gone; the reader notices that too
        except Exception:  # whatever a backend puts into its outputs, requests must not hang
            logger.exception("messages cannot be sent to a web worker; it is disconnected")
        self._channel.close()

    def _send(self, message: EngineMessage) -> None:
        """Send a message, or its outputs one by one if it is too long. If an output is too long, its request fails."""
        try:
            self._channel.send(message)
        except MessageTooLong as error:
            if not isinstance(message, Outputs):
                raise
            if len(message.outputs) > 1:
                for output in message.outputs:
                    self._send(Outputs([output]))
            else:
                number = message.outputs[0].number
                self._channel.send(Failed(number, "RequestFailed", f"its output is too long to be sent: {error}"))
                self._inbox.put((self, Abort(number)))

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                self._inbox.put((self, message))
        except Exception:  # usually a ProtocolError; in any case the loop must learn that the worker is gone
            logger.exception("a web worker cannot be understood; it is disconnected")
        self._inbox.put((self, Disconnected()))
        self._on_gone(self)
        self._outbox.put(None)
        self._channel.close()


class WorkerServer:
    """Accepts web workers and tells them the state of the engine, when they connect and on every change."""

    def __init__(self, path: Path, inbox: Inbox) -> None:
        self._inbox = inbox
        self._state: EngineMessage = Loading("starting")
        self._connections: list[WorkerConnection] = []
        self._lock = threading.Lock()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def announce(self, state: Loading | Ready) -> None:
        """Tell every worker, including those that connect later."""
        with self._lock:
            self._state = state
            for connection in self._connections:
                connection.send(state)

    def hang_up_on_stuck(self, limit: float) -> None:
        """Disconnect each worker that has left a message unread for `limit` seconds.

        Its requests occupy places in the batch that others need.
        """
        with self._lock:
            for connection in self._connections:
                since = connection.sending_since
                if since is not None and time.monotonic() - since > limit:
                    logger.error("a web worker reads nothing; it is disconnected", extra={"seconds": limit})
                    connection.close()

    def flush(self) -> None:
        """Send what is queued for the workers. Takes at most a second."""
        deadline = time.monotonic() + _FLUSH_TIMEOUT
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.finish()
        for connection in connections:
            connection.flush(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # for example because no file descriptor is left
                logger.exception("a web worker cannot connect")
                time.sleep(_ACCEPT_PAUSE)
                continue
            with self._lock:
                connection = WorkerConnection(sock, self._inbox, self._forget)
                connection.send(self._state)
                self._connections.append(connection)

    def _forget(self, connection: WorkerConnection) -> None:
        with self._lock:
            self._connections.remove(connection)


def serve(settings: EngineSettings) -> None:
    """Load the model and run the loop until this process is killed.

    Raises `ConfigError` if the model or an option is wrong, `LoadFailed` if another try may help.
    """
    heartbeat = Heartbeat.create(settings.heartbeat_path)
    inbox: Inbox = queue.SimpleQueue()
    server = WorkerServer(settings.socket_path, inbox)

    def report(phase: str) -> None:
        logger.info("engine loading", extra={"phase": phase})
        server.announce(Loading(phase))

    started = time.monotonic()
    backend, info = _load(settings, report)
    admission = _admission(settings.properties, backend.capabilities.max_num_seqs)

    def say_so() -> None:  # so that `/ping` fails before any request does
        server.announce(Loading("the engine has died and is restarted"))

    loop = EngineLoop(backend, admission, settings.properties.job_queue_size, inbox, say_so, heartbeat)
    start_repeating(_WATCH_INTERVAL, lambda: _watch(loop, backend, server, settings.properties.stall_timeout))
    heartbeat.start(patience=CPU_PATIENCE if backend.capabilities.device == "cpu" else 1.0)
    start_repeating(PULSE_INTERVAL, heartbeat.beat)
    start_repeating(PULSE_INTERVAL, lambda: heartbeat.compare(backend.progress))
    metrics = EngineMetrics(settings.metrics_dir)
    start_repeating(_LOAD_INTERVAL, lambda: _publish_load(loop, backend, metrics))
    server.announce(Ready(info))
    logger.info(
        "engine ready",
        extra={"backend": info.backend, "model": info.model_name, "seconds": round(time.monotonic() - started, 3)},
    )
    try:
        loop.run()
    finally:
        server.flush()


def _load(settings: EngineSettings, report: Callable[[str], None]) -> tuple[Backend, EngineInfo]:
    properties = settings.properties
    selection = select_backend(properties)
    logger.info("backend selected", extra={"backend": selection.name, "reason": selection.reason})
    report("importing the engine")
    backend_class = load_backend_class(selection.name)
    model_path: Path | None = None
    if backend_class.needs_model or properties.model_id is not None:
        report("locating the model")
        model_path = resolve_model(
            properties.model_id,
            model_dir=Path(properties.model_dir) if properties.model_dir else None,
            revision=properties.revision,
            cache_dir=default_cache_dir(os.environ),
            report=report,
        )
    report("preparing the tokenizer")
    template = None
    if properties.chat_template is not None:
        template = read_chat_template(
            properties.chat_template, Path(properties.model_dir) if properties.model_dir else None
        )
    if model_path is None:
        bundle = build_byte_bundle(settings.bundle_dir, chat_template=template)
    else:
        bundle = build_text_bundle(
            model_path,
            settings.bundle_dir,
            trust_remote_code=properties.trust_remote_code,
            chat_template=template,
            content_format=properties.chat_template_content_format,
        )
    # Only the template tells whether option.enable_reasoning alone is enough. Check it before loading the weights.
    choose_reasoning_format(bundle.tool_template, properties.reasoning_parser, enabled=properties.enable_reasoning)
    report("loading the model")
    files = ModelFiles(
        path=model_path,
        eos_token_ids=bundle.eos_token_ids,
        vocab_size=bundle.vocab_size,
        adapters=find_adapters(properties, model_path),
    )
    backend = backend_class.load(files, properties, report)
    capabilities = backend.capabilities
    return backend, EngineInfo(
        bundle=str(settings.bundle_dir),
        backend=capabilities.backend,
        model_name=properties.name,
        max_model_len=capabilities.max_model_len,
        vocab_size=capabilities.vocab_size,
        max_logprobs=capabilities.max_logprobs,
        max_prompt_logprobs=capabilities.max_prompt_logprobs,
        unsupported=capabilities.unsupported,
        adapters=capabilities.adapters,
        device=capabilities.device,
        dtype=capabilities.dtype,
        max_num_seqs=capabilities.max_num_seqs if properties.rolling else properties.batch_size,
        takes_images=capabilities.takes_images,
    )


def _admission(properties: ServingProperties, max_num_seqs: int) -> Admission:
    if properties.rolling:
        return RollingBatch(max_num_seqs)
    return DynamicBatch(properties.batch_size, properties.max_batch_delay / 1000)


def start_repeating(interval: float, action: Callable[[], None]) -> None:
    """Call `action` repeatedly on its own thread. Exceptions do not end it, because nobody would notice."""

    def repeat() -> None:
        told = ""
        while True:
            try:
                action()
            except Exception as error:
                if repr(error) != told:  # log a repeated error only once
                    told = repr(error)
                    logger.exception("a thread of the engine process fails and goes on")
            time.sleep(interval)

    threading.Thread(target=repeat, daemon=True).start()


def _watch(loop: EngineLoop, backend: Backend, server: WorkerServer, stall_timeout: float) -> None:
    """If the engine has lost one of its processes, fail all requests and exit: the engine may not notice it itself.

    Also disconnects web workers that hang.
    """
    server.hang_up_on_stuck(stall_timeout)
    try:
        backend.check_health()
    except EngineDead as error:
        logger.critical("engine is dead; the process ends", extra={"cause": str(error)})
        loop.fail_all(error)
        server.flush()
        os._exit(EXIT_STUCK)


def _publish_load(loop: EngineLoop, backend: Backend, metrics: EngineMetrics) -> None:
    """Publish the load. Not done in the loop, because its steps may take long."""
    metrics.set_load(running=loop.running, waiting=loop.waiting, kv_cache_usage=backend.kv_cache_usage)


def _end_with_parent() -> None:
    """Make this process and everything it starts end with its parent, which holds the other end of standard input.

    A separate process watches for that: by then this one may be stopped, or native code may hold the GIL.
    """
    if os.getpgrp() != os.getpid():  # for example when started by hand
        os.setpgid(0, 0)
    watch = "import os, signal\nwhile os.read(0, 1024): pass\nos.killpg(0, signal.SIGKILL)"
    os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", watch], os.environ)


def main() -> int:
    """Entry point of `python -m lmi_handlers.engine.process`. Reads its settings on standard input."""
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    _end_with_parent()
    try:
        serve(settings)
    except ConfigError as error:
        tell("error", str(error))
        return EXIT_CONFIG
    except LoadFailed as error:
        tell("error", str(error))
        return EXIT_LOAD_FAILED
    except Exception:
        logger.exception("engine died")
        return 1
    return 0


if __name__ == "__main__":
    # Daemon threads may be in native code. Exiting without interpreter shutdown cannot hang on them.
    code = main()
    sys.stderr.flush()
    os._exit(code)
