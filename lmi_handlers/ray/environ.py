"""The variables that Ray's own processes are started with. This module does not import Ray."""

from __future__ import annotations

import os


def ray_environ(predict_timeout: int) -> dict[str, str]:
    """Return what Ray's own processes are started with, as far as the environment does not say otherwise.

    Requests go from HAProxy to the replicas, and not through Ray's Python proxy, which would cost more time for each token
    than all the rest. When replicas come and go, Ray starts a new HAProxy, and ends the old one after a time, by which all
    of its requests must be answered.
    """
    ours = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(predict_timeout + 10),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # ours only passes bytes
    }
    return {name: os.environ.get(name, text) for name, text in ours.items()}
