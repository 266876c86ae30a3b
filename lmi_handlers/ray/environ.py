"""The variables that Ray's own processes are started with. This module does not import Ray."""

from __future__ import annotations

import os

_MORE_SECONDS = 10
"""How much longer HAProxy waits than the server, which ends a request at its deadline itself."""


def ray_environ(predict_timeout: int) -> dict[str, str]:
    """Return what Ray's own processes are started with, as far as the environment does not say otherwise.

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
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # ours only passes bytes
    }
    return {name: os.environ.get(name, text) for name, text in ours.items()}
