"""A Ray of this machine only, for `lmi ray serve` without a cluster's address."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import parameter
from ray._private.worker import BaseContext

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.ray.environ import node_environ
from lmi_handlers.workers.process import free_ports

_OBJECT_STORE_BYTES = 100_000_000  # no request passes through Ray's object store


def start_local() -> BaseContext:
    """Start Ray on this machine and connect to it. Raises `ConfigError` if Ray gives up."""
    os.environ.update(node_environ())
    agent_http, agent_grpc, runtime_env, metrics = free_ports(4)
    ports = {
        "dashboard_agent_listen_port": agent_http,
        "metrics_agent_port": agent_grpc,
        "runtime_env_agent_port": runtime_env,
    }
    try:
        with _parameters(ports):
            return ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _metrics_export_port=metrics,
            )
    except Exception as error:  # Ray raises a bare `Exception` if its processes take too long
        raise ConfigError(f"Ray does not start on this machine: {error}") from error


@contextlib.contextmanager
def _parameters(ports: dict[str, int]) -> Iterator[None]:
    """Let `ray.init` give Ray's agents these ports, which it has no arguments for, unlike `ray start`.

    An agent that chooses its port itself has 15 s until it must have said which, and a busy machine takes longer.
    """
    module: Any = parameter
    original = module.RayParams
    module.RayParams = functools.partial(original, **ports)
    try:
        yield
    finally:
        module.RayParams = original
