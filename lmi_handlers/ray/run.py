"""`lmi ray serve`: starts Ray if there is no cluster, deploys the application and waits for Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import Any

import msgspec
import ray
from ray import serve
from ray._private.worker import BaseContext
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus

from lmi_handlers.config.server_settings import netloc
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import configure_logging
from lmi_handlers.preflight.checks import check_port, mistakes
from lmi_handlers.preflight.configuration import examine_configuration
from lmi_handlers.ray.application import build
from lmi_handlers.ray.arguments import Arguments
from lmi_handlers.ray.environ import connections_environ, ray_environ
from lmi_handlers.ray.local import start_local
from lmi_handlers.ray.resources import max_ongoing_requests

logger = logging.getLogger(__name__)

APPLICATION = "lmi"
"""Its name on the cluster."""

_POLL_SECONDS = 1.0
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.NOT_STARTED)


class RayServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. `address` is None for a cluster of this machine only."""

    address: str | None
    host: str
    port: int
    proxies: str
    detach: bool = False
    """True if the application is left to the cluster once it serves."""


def run(arguments: Arguments, options: RayServeOptions) -> None:
    """Serve until SIGINT or SIGTERM, then let requests finish. Raises `ConfigError`, with one mistake per line.

    If the application is on the cluster already, Ray replaces its replicas one after the other.
    """
    configure_logging()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    environ = {"LMI_MODEL_DIR": arguments.model_dir, **arguments.environ}
    configuration = examine_configuration({**os.environ, **environ})
    causes = configuration.loaded.mistakes
    if options.address is None:
        check_port(options.host, options.port)
        causes = mistakes(configuration, {**os.environ, **environ})
    if causes:
        raise ConfigError("\n".join(causes))
    context = _connect(options.address)
    for number in (signal.SIGINT, signal.SIGTERM):  # after Ray has installed handlers of its own
        signal.signal(number, _interrupt)
    try:
        of_ray = ray_environ(configuration.properties.predict_timeout)
        if options.address is None:
            of_ray = {**of_ray, **connections_environ(arguments.most_replicas * max_ongoing_requests(configuration))}
        with contextlib.suppress(TimeoutError):  # Ray's own, after a minute: on a busy machine, the proxies come later
            serve.start(
                proxy_location=options.proxies,
                http_options={"host": options.host, "port": options.port},
                controller_options={"runtime_env": {"env_vars": of_ray}},
            )
        _check_listens(options)
        _deploy(build(arguments, configuration, environ, of_ray), options, context)
    except KeyboardInterrupt:
        pass  # nothing has been deployed yet
    except (RuntimeError, RayError) as error:  # Ray's, if the proxy or the replicas do not start
        raise ConfigError(f"Ray does not start the replicas: {error}") from error
    finally:
        if options.address is None:
            serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def _deploy(application: serve.Application, options: RayServeOptions, context: BaseContext) -> None:
    """Deploy the application, and delete it in the end unless it is left to the cluster."""
    try:
        serve.run(application, name=APPLICATION)
        logger.info("serving on Ray at http://%s", netloc(options.host, options.port))
        logger.info("the logs of the replicas are in %s on their nodes", _logs(context))
        if context.dashboard_url:
            logger.info("Ray's dashboard is at http://%s", context.dashboard_url)
        if not options.detach:
            _wait()
    except KeyboardInterrupt:
        logger.info("shutting down: replicas finish their requests")
    finally:
        if not options.detach:
            _delete()


def _interrupt(number: int, _frame: Any) -> None:
    """Begin the shutdown. The second signal ends this process at once, and with it a local Ray."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _connect(address: str | None) -> BaseContext:
    if address is None:
        return start_local()
    try:
        return ray.init(address=address)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"--address {address}: {error}") from error


def _check_listens(options: RayServeOptions) -> None:
    """Raise `ConfigError` if Serve, which was running already, listens elsewhere: it does not move."""
    client = _get_global_client()
    if client is None:
        return
    listens = client.http_config
    if (listens.host, listens.port) != (options.host, options.port):
        raise ConfigError(
            f"Ray Serve listens on {netloc(listens.host, listens.port)} on this cluster already: "
            f"use --host {listens.host} --port {listens.port}, or end it with `serve shutdown`"
        )


def _logs(context: BaseContext) -> str:
    """Return the folder of the logs. It is the same on each node, unless its Ray was started with another one."""
    return f"{getattr(context, 'address_info', {}).get('session_dir', '/tmp/ray/session_latest')}/logs"  # noqa: S108


def _delete() -> None:
    """Delete the application, and wait until its replicas have ended: `serve.shutdown` would cut their streams."""
    serve.delete(APPLICATION, _blocking=False)
    while APPLICATION in serve.status().applications:
        time.sleep(_POLL_SECONDS)


def _wait() -> None:
    """Wait for a signal. Raises `ConfigError` if the application is deleted or fails."""
    while True:
        time.sleep(_POLL_SECONDS)
        application = serve.status().applications.get(APPLICATION)
        if application is None or application.status in _FAILED:
            raise ConfigError(f"the application has ended: {application.message if application else 'it was deleted'}")
