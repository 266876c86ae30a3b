"""The engine process: loads one model, then serves web workers over a Unix socket until its parent goes away."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from backends import load_backend_class
from backends.base import Backend, ModelFiles
from backends.selection import select_backend
from lmi_handlers.engine.adapters import find_adapters
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.channel import engine_end
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import EngineInfo, EngineMessage, Loading, Ready
from lmi_handlers.engine.model_store import default_cache_dir, resolve_model
from lmi_handlers.engine.outbox import Outbox
from lmi_handlers.engine.settings import EXIT_CONFIG, EngineSettings, read_line
from lmi_handlers.errors import ConfigError, EngineDead
from lmi_handlers.log import configure_logging
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.properties import ServingProperties
from lmi_handlers.text.bundle import build_byte_bundle, build_text_bundle, read_chat_template
from lmi_handlers.text.reasoning import choose_reasoning

EXIT_STUCK = 70
_WATCH_INTERVAL = 0.2
_LOAD_INTERVAL = 0.1

logger = logging.getLogger("lmi_handlers.engine.process")  # __name__ is "__main__" here


class WorkerConnection:
    """One connected web worker. Messages leave through a thread of their own, so that a slow worker stops nobody."""

    def __init__(self, sock: socket.socket, inbox: Inbox, on_gone: Callable[[WorkerConnection], None]) -> None:
        self._channel = engine_end(sock)
        self._inbox = inbox
        self._on_gone = on_gone
        self._outbox = Outbox()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: EngineMessage) -> None:
        """Queue a message; never blocks, and does nothing once the worker has gone."""
        self._outbox.put(message)

    def flush(self, timeout: float) -> None:
        """Write what is queued and take no more; for the process's end."""
        self._outbox.put(None)
        self._writer.join(timeout)

    def _write(self) -> None:
        try:
            while True:
                for message in self._outbox.take():
                    if message is None:
                        return
                    self._channel.send(message)
        except OSError:
            self._channel.close()

    def _read(self) -> None:
        for message in self._channel.receive():
            self._inbox.put((self, message))
        self._inbox.put((self, Disconnected()))
        self._on_gone(self)
        self._outbox.put(None)
        self._channel.close()


class WorkerServer:
    """Accepts web workers and tells each of them, now and on every change, how far the engine has come."""

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
        """Tell every worker, and those still to come."""
        with self._lock:
            self._state = state
            for connection in self._connections:
                connection.send(state)

    def flush(self) -> None:
        """Deliver what is queued for the workers, within a second."""
        with self._lock:
            for connection in self._connections:
                connection.flush(timeout=1.0)

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with self._lock:
                connection = WorkerConnection(sock, self._inbox, self._forget)
                connection.send(self._state)
                self._connections.append(connection)

    def _forget(self, connection: WorkerConnection) -> None:
        with self._lock:
            self._connections.remove(connection)


def serve(settings: EngineSettings, lifeline: int) -> None:
    """Load the model and run the loop until `lifeline`, a file descriptor whose other end the parent holds, is closed.

    Raises `ConfigError` where the model or an option is wrong.
    """
    inbox: Inbox = queue.SimpleQueue()
    server = WorkerServer(settings.socket_path, inbox)
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()

    def report(phase: str) -> None:
        logger.info("engine loading", extra={"phase": phase})
        server.announce(Loading(phase))

    started = time.monotonic()
    with _loading_limit(settings.properties.model_loading_timeout):
        backend, info = _load(settings, report)
    admission = _admission(settings.properties, backend.capabilities.max_num_seqs)

    def say_so() -> None:  # `/ping` knows before any client does
        server.announce(Loading("the engine has died and is restarted"))

    loop = EngineLoop(backend, admission, settings.properties.job_queue_size, inbox, say_so)
    limit = settings.properties.predict_timeout
    threading.Thread(target=_watch, args=(loop, backend, limit, server), daemon=True).start()
    metrics = EngineMetrics(settings.metrics_dir)
    threading.Thread(target=_publish_load, args=(loop, backend, metrics), daemon=True).start()
    server.announce(Ready(info))
    logger.info(
        "engine ready",
        extra={"backend": info.backend, "model": info.model_name, "seconds": round(time.monotonic() - started, 3)},
    )
    try:
        loop.run()
    finally:
        server.flush()


@contextmanager
def _loading_limit(seconds: float) -> Iterator[None]:
    """End the process with a line if the block takes longer; whatever it hangs on cannot be interrupted otherwise."""

    def give_up() -> None:
        print(
            f"lmi: error: loading took longer than model_loading_timeout ({seconds:g} s)", file=sys.stderr, flush=True
        )
        os._exit(EXIT_CONFIG)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


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
    # Only the template can tell whether option.enable_reasoning alone is enough: say so before the weights are read.
    choose_reasoning(bundle.tool_template, properties.reasoning_parser, enabled=properties.enable_reasoning)
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
        takes_images=capabilities.takes_images,
    )


def _admission(properties: ServingProperties, max_num_seqs: int) -> Admission:
    if properties.rolling:
        return RollingBatch(max_num_seqs)
    return DynamicBatch(properties.batch_size, properties.max_batch_delay / 1000)


def _watch(loop: EngineLoop, backend: Backend, step_limit: float, server: WorkerServer) -> None:
    """End the process, once everyone has been told, where the loop cannot: it is in a step that will never return.

    A step that takes longer than any request may is stuck for good; an engine that has lost a process may not notice.
    """
    while True:
        time.sleep(_WATCH_INTERVAL)
        started = loop.step_started
        error: EngineDead | None = None
        if started is not None and time.monotonic() - started > step_limit:
            error = EngineDead(f"one engine step took longer than predict_timeout ({step_limit:g} s); it restarts")
        try:
            backend.check_health()
        except EngineDead as death:
            error = death
        if error is not None:
            logger.critical("engine is dead; the process ends", extra={"cause": str(error)})
            loop.fail_all(error)
            server.flush()
            os._exit(EXIT_STUCK)


def _publish_load(loop: EngineLoop, backend: Backend, metrics: EngineMetrics) -> None:
    """Say how much there is to do: not from within the loop, whose steps may take their time."""
    while True:
        metrics.set_load(running=loop.running, waiting=loop.waiting, kv_cache_usage=backend.kv_cache_usage)
        time.sleep(_LOAD_INTERVAL)


def _exit_with_parent(lifeline: int) -> None:
    """The parent holds the other end for as long as it lives; nobody is left to serve after that."""
    while os.read(lifeline, 1024):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with the processes that the engine has started
    os._exit(0)


def main() -> int:
    """Entry of `python -m lmi_handlers.engine.process`; settings come on standard input."""
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    try:
        serve(settings, sys.stdin.fileno())
    except ConfigError as error:
        print(f"lmi: error: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG
    except Exception:
        logger.exception("engine died")
        return 1
    return 0


if __name__ == "__main__":
    # Daemon threads may sit in native code; ending without interpreter shutdown cannot hang on them.
    code = main()
    sys.stderr.flush()
    os._exit(code)
