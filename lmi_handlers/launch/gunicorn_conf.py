"""gunicorn's configuration, which starts the server. `lmi_handlers.gunicorn_conf` is its public name.

The arbiter starts the engine's supervisor unless `LMI_ENGINE_SOCKET` names an engine that is already running. The
supervisor exits with the arbiter. If it gives up on the engine, the arbiter exits too, with a nonzero status.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from gunicorn.glogging import Logger
from gunicorn.http.body import Body
from gunicorn.systemd import listen_fds

from lmi_handlers.config.server_settings import default_workers, is_loopback, netloc
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.file_descriptors import for_clients
from lmi_handlers.core.log import configure_logging, fail, relay_log, tell
from lmi_handlers.core.log_relay import LogRelay
from lmi_handlers.core.plugins import importing
from lmi_handlers.engine.runtime_folder import end_server, has_given_up, make_runtime_folder
from lmi_handlers.engine.settings import SOCKET_VARIABLE, EngineSettings
from lmi_handlers.launch.listening import Address, host_of, who_can_connect
from lmi_handlers.metrics.catalogue import CATALOGUE, LOG_LINES_DROPPED
from lmi_handlers.metrics.cells import Cells
from lmi_handlers.models.registry import RUNTIME_VARIABLE
from lmi_handlers.models.settings import ManagerSettings
from lmi_handlers.preflight.checks import (
    SOCKET,
    SOCKET_OF_MANY_MODELS,
    check_port,
    check_temporary_directory,
    mistakes,
    warnings,
)
from lmi_handlers.preflight.configuration import Configuration, StoreConfiguration, examine_configuration, read_store
from lmi_handlers.preflight.pages import shown_pages, why_no_pages
from lmi_handlers.telemetry.tracing import worker_traces
from lmi_handlers.web import gevent_worker  # noqa: F401  before Flask, which the checks may import: see there
from lmi_handlers.web.api_keys import key_variable
from lmi_handlers.web.body_reader import BodyReader
from lmi_handlers.web.client_socket import ClientSocket
from lmi_handlers.web.malformed_requests import without_content
from lmi_handlers.web.reloads import count_reload, reloads
from lmi_handlers.workers.process import KeptProcess


def _start_up() -> Configuration | StoreConfiguration:
    """Read and check all configuration. Each mistake is one error line, then the process exits: no traceback.

    The manager checks each of several models when it loads them.
    """
    try:
        if (store := read_store(os.environ)) is not None:
            return store
        configuration = examine_configuration(os.environ)
    except ConfigError as error:
        fail(str(error))
    for warning in warnings(configuration):
        tell("warning", warning)
    if causes := mistakes(configuration, os.environ):
        fail(*causes)
    return configuration


def _raise_file_limit() -> int:
    """Raise the open-file limit of this process and its children as far as allowed, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(ValueError, OSError):  # some systems impose other limits
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


_started = float(os.environ.pop("LMI_STARTED", time.monotonic()))  # set by `lmi serve`
_configuration = _start_up()
_settings, _properties = _configuration.settings, _configuration.properties

_management = None if _settings.store is None else _settings.store.management
bind = [netloc(*address) for address in ((_settings.host, _settings.port), _management) if address is not None]
workers = _settings.workers or _properties.web_workers or default_workers()
worker_class = "lmi_handlers.web.gevent_worker.ClientLimitingWorker"
worker_connections = max(64, min(4096, for_clients(_raise_file_limit())))
threads = 64  # only used with the gthread worker class
timeout = 60  # a worker whose event loop is blocked this long is killed and replaced; waiting requests do not block it
if os.access("/dev/shm", os.W_OK):  # noqa: S108  gunicorn makes the file with mkstemp
    worker_tmp_dir = "/dev/shm"  # noqa: S108  a heartbeat must not wait for a disk
graceful_timeout = 27
keepalive = 75
control_socket_disable = True
limit_request_line = 8190
# No header says where a request comes from or what its path is, whoever is connected: a proxy on this machine, or in front
# of a Unix socket, passes on what its clients send. gunicorn would take SCRIPT_NAME and PATH_INFO from there.
forwarded_allow_ips = ""
forwarder_headers = ""


class logger_class(Logger):  # type: ignore[misc]  # noqa: N801  gunicorn has no types, and its setting has this name
    """Sends gunicorn's own messages to our logging. Its access log is off: ours says more and costs less."""

    def setup(self, cfg: Any) -> None:  # noqa: ARG002  gunicorn's signature
        """Send warnings and errors to our handlers."""
        configure_logging()
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        self.error_log.setLevel("WARNING")

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a warning."""
        super().warning(without_content(msg), *args, **kwargs)

    def access(self, *_arguments: Any) -> None:
        """Does nothing."""


DRAIN_SECONDS = 23.0
"""Requests still running this long after a SIGTERM get a well-formed error. gunicorn's timeout is a little longer."""

_DRAIN_SILENCE = 3.0
"""During shutdown, a client is cut off if it has sent and read nothing for this many seconds."""

_TRACES_END = 1.0
"""Seconds in which a worker sends its last traces during shutdown."""

_LISTENER_CLOSES = 1.2
"""Seconds until a gevent worker that was told to stop no longer accepts connections."""

logger = logging.getLogger(__name__)

_in_flight = 0
_engine: EngineSettings | ManagerSettings | None = None
_supervisor_pid: int | None = None
_relay: LogRelay | None = None
_cells: Cells | None = None


def on_starting(server: Any) -> None:
    """Start the engine. It loads the model while the workers boot."""
    global _engine, _supervisor_pid, _relay, _cells
    configure_logging()
    _relay = relay_log(_count_dropped)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' too: `/ping` and the log show the phase
    try:
        has_many = isinstance(_configuration, StoreConfiguration)
        check_temporary_directory(SOCKET_OF_MANY_MODELS if has_many else SOCKET)
        for address in _own_addresses(server):
            check_port(*address)
        bound = [address if isinstance(address, tuple) else None for address in server.cfg.address]
        settings = msgspec.structs.replace(_settings, host=host_of(bound))
        shown_pages(settings, _properties, os.environ)  # imported here once, before web workers are forked
    except ConfigError as error:
        fail(str(error))
    if SOCKET_VARIABLE in os.environ and isinstance(_configuration, Configuration):
        return
    try:
        runtime_dir = str(make_runtime_folder())
    except OSError as error:
        fail(f"no folder can be made for temporary files (TMPDIR): {error}")
    if isinstance(_configuration, StoreConfiguration):
        program = "lmi_handlers.launch.model_manager"
        _engine = ManagerSettings(
            runtime_dir=runtime_dir, store=_configuration.store, started=_started, drain_seconds=DRAIN_SECONDS
        )
        os.environ[RUNTIME_VARIABLE] = runtime_dir
    else:
        program = "lmi_handlers.engine.supervisor"
        _engine = _configuration.engine_settings(runtime_dir, _started)
        with contextlib.suppress(OSError):  # the disk is full: whatever needs it more says so
            _cells = Cells(_engine.metrics_dir, CATALOGUE)
        os.environ[SOCKET_VARIABLE] = os.pathsep.join(str(replica.socket_path) for replica in _engine.each)
    # Ctrl-C reaches every process of a terminal. The supervisor and its engine ignore it: this process handles it.
    supervisor = KeptProcess(
        program,
        settings=_engine,
        group=False,
        preexec_fn=_ignore_ctrl_c,  # the only other threads read and write the log
    )
    # The pipe stays open while this process or one of its forked workers lives. The engine exits when it closes.
    server.lmi_supervisor = supervisor
    _supervisor_pid = supervisor.pid
    # gunicorn installs its signal handlers later. Until then signals must wait, including the one that the supervisor
    # sends if the engine cannot start.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    _preload()
    if signal.sigpending() & {*_ENDING}:
        on_exit(server)
        sys.exit(0)


def _count_dropped(lines: int) -> None:
    if _cells is not None:
        _cells.add(LOG_LINES_DROPPED, lines)


def pre_exec(server: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Before USR2 starts another arbiter, which outlives this one: it reads its log itself."""
    if _relay is not None:
        _relay.restore()


def _own_addresses(server: Any) -> Iterator[tuple[str, int]]:
    """Yield the TCP addresses that only this process will listen on: not Unix, inherited or shared sockets."""
    inherits = server.master_pid or listen_fds(unset_environment=False)  # USR2 or systemd
    if not (inherits or server.cfg.reuse_port or any(isinstance(address, int) for address in server.cfg.address)):
        yield from (address for address in server.cfg.address if isinstance(address, tuple))


def _preload() -> None:
    """Import what web workers need before they are forked, so that a replacement worker starts at once.

    The imports take half a second, during which a worker cannot answer. Each worker still calls `create_app` itself.
    """
    with importing():
        import lmi_handlers.launch.app  # noqa: F401


def when_ready(server: Any) -> None:
    """Log the addresses that now accept requests, and who can connect. The model may still be loading."""
    os.register_at_fork(after_in_parent=_ended_again(os.getpid()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for listener in server.LISTENERS:
        logger.info("listening on %s", listener)
    _tell_host(_addresses(server))


def _addresses(server: Any) -> list[Address]:
    """Return what the server listens on, whether `lmi serve`, gunicorn's `-b` or systemd chose it."""
    names = [listener.getsockname() for listener in server.LISTENERS]
    names = names or server.cfg.address  # with --reuse-port, each worker makes sockets of its own
    return [name[:2] if isinstance(name, tuple) else None for name in names]


def _tell_host(addresses: list[Address]) -> None:
    """Pass the configuration and the listening host to the workers, which are forked later, and log who can connect."""
    from lmi_handlers.launch.app import keep  # not earlier: its imports take half a second

    os.environ["LMI_HOST"] = host = host_of(addresses)
    keep(msgspec.structs.replace(_configuration, settings=msgspec.structs.replace(_settings, host=host)))
    key = key_variable(os.environ)
    no_console = why_no_pages(_properties.console, host, os.environ)
    logger.info(who_can_connect(addresses, key=key, no_console=no_console))
    runtime = _settings.local_runtime
    if runtime.enabled and runtime.keys_file is None and not is_loopback(host) and not key:
        tell(
            "warning",
            f"the local runtime does not check signatures, and other machines can reach {bind[0]}; "
            "set API_KEY or --local-runtime-keys, or do not use --host",
        )


def pre_request(worker: Any, req: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Count the request as in flight, and install our body reader."""
    global _in_flight
    _in_flight += 1
    if isinstance(req.body, Body):  # HTTP/1
        BodyReader(req)
        if not isinstance(req.unreader.sock, ClientSocket):  # another worker class: at least set a read timeout
            req.unreader.sock.settimeout(_properties.client_timeout)


def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Called after a response has been written or its client has disconnected."""
    global _in_flight
    _in_flight -= 1


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def pre_fork(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Block the signals that end a worker until it has started: before that it would lose them or spin."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _ended_again(arbiter: int) -> Callable[[], None]:
    """Return what lets signals end the arbiter again after it has forked a worker."""

    def unblock() -> None:
        if os.getpid() == arbiter:  # a worker that forks is none of its business
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    return unblock


def post_fork(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Send a worker's first heartbeat, because gunicorn never times out a worker that has sent none."""
    worker.tmp.notify()
    worker.reloads = reloads()


def on_reload(server: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """Let the workers know that they are replaced, while the server goes on."""
    count_reload()


def post_worker_init(worker: Any) -> None:
    """Watch for the worker's shutdown, which gunicorn announces only by a flag."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the arbiter handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    worker.client_timeout = _properties.client_timeout
    if "gevent" in type(worker).__module__:
        from lmi_handlers.web.gevent_threads import threads_beside  # only a gevent worker may import it

        worker.wsgi.use_threads(threads_beside())
    threading.Thread(target=_drain, args=(worker,), daemon=True).start()
    # Everything loaded so far stays loaded, so exclude it from garbage collection. Requests create few cycles, so
    # collect less often: not in the middle of a burst, in which 256 requests hold 20,000 objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _drain(worker: Any) -> None:
    """Wait for the worker's shutdown, then let requests in flight finish, within limits. Idle connections do not count.

    Also shuts the server down if the supervisor was killed.
    """
    while worker.alive:
        time.sleep(0.1)
        if _engine is not None and _supervisor_pid is not None and not _exists(_supervisor_pid):
            # The supervisor was killed, for example by the kernel for lack of memory. Nothing could restart the engine.
            end_server(Path(_engine.runtime_dir), os.getppid())
            break
    if worker.reloads == reloads():  # otherwise others answer already, and `/ping` must not say that the server ends
        worker.wsgi.start_draining()
    deadline = time.monotonic() + DRAIN_SECONDS
    time.sleep(_LISTENER_CLOSES)
    while _in_flight and time.monotonic() < deadline:
        time.sleep(0.05)
        if hasattr(worker, "cut_silent"):  # our worker class
            worker.cut_silent(_DRAIN_SILENCE)
    if _in_flight:
        worker.wsgi.end_draining()
        time.sleep(1.0)
    if (traces := worker_traces()) is not None:
        traces.shutdown(_TRACES_END)
    os.kill(os.getpid(), signal.SIGQUIT)  # makes gunicorn stop at once, which is safe now


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's hook signature
    """The worker's loop has ended. `_drain`'s signal may still come: Python would show a traceback of its own exit."""
    if worker.pid == os.getpid():  # the arbiter calls this too, for a worker that it finds missing
        signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))


_SUPERVISOR_ENDS = 2.0
"""Seconds in which the supervisor has to end the engine, to publish the last metrics and to end itself."""


def on_exit(server: Any) -> None:
    """Clean up. Exit with status 1 if the server stopped because of the engine."""
    if _engine is None:
        return
    # The supervisor ends when the pipe closes. In a container, every process ends with this one.
    server.lmi_supervisor.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.lmi_supervisor.wait(_SUPERVISOR_ENDS)
    folder = Path(_engine.runtime_dir)
    failed = has_given_up(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if failed:
        sys.exit(1)
