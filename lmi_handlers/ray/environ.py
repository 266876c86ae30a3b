"""The environment of Ray's own processes. This module does not import Ray."""

from __future__ import annotations

import os
import resource

from lmi_handlers.core.file_descriptors import for_clients

_CONNECTIONS = 4096
"""Ray's own limit of HAProxy's connections."""

_FILES_PER_CONNECTION = 2

_MORE_SECONDS = 10
"""Seconds that HAProxy waits longer than the server, which ends a request at its deadline itself."""

_NODE = {
    "RAY_worker_niceness": "0",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "300",
}


def ray_environ(predict_timeout: int) -> dict[str, str]:
    """Return the variables of Ray's own processes. Those that the environment has already take precedence.

    Requests go from HAProxy to the replicas, and not through Ray's Python proxy, which would cost more time for each token
    than all the rest. When replicas come and go, Ray starts a new HAProxy, and ends the old one after a time, by which all
    of its requests must be answered.

    A machine that dies refuses no connection: it is silent. HAProxy then takes another replica after a second, and asks
    each replica every second whether it is alive. It is left out after three silent seconds, or at once if it refuses a
    connection. Ray's own checks would take half a minute.
    """
    longest = str(predict_timeout + _MORE_SECONDS)
    ours = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": longest,
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": longest,  # without it, a request to a silent machine never ends
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": longest,
        "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "1",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "3",
        "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # a slow machine needs more than Ray's 5 s to start HAProxy
        "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    }
    return {name: os.environ.get(name, text) for name, text in ours.items()}


def node_environ() -> dict[str, str]:
    """Return further environment variables for Ray on each node.

    Ray's own niceness of 15 is one for batch jobs: beside two busy processes, a replica would wait for most of the time.
    A busy machine takes longer than Ray's 30 and 60 s to start Ray's own processes and its workers.
    """
    return {name: os.environ.get(name, text) for name, text in _NODE.items()}


def replica_environ() -> dict[str, str]:
    """Return further variables for the processes of the replicas.

    Requests pass our gate before Ray's code. They stay in one thread: ours only passes bytes, and the gate counts them.
    """
    return {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "lmi_handlers.ray.gate:middlewares",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    }


def connections_environ(requests: int) -> dict[str, str]:
    """Return the variable that limits HAProxy's connections on this machine, for this many concurrent `requests`.

    Beyond it, clients wait without an answer, where a full replica would reject them. HAProxy does not start if it may not
    open enough files.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = for_clients(files) // _FILES_PER_CONNECTION if files != resource.RLIM_INFINITY else requests
    limit = max(_CONNECTIONS, min(requests, possible))
    return {"RAY_SERVE_HAPROXY_MAXCONN": os.environ.get("RAY_SERVE_HAPROXY_MAXCONN", str(limit))}
