"""What the engine says of a worker on Ray that has died, and what workers get of its environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.needs("ray"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]

CAUSES = """
from concurrent.futures import Future

from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from backends.vllm.ray.failures import cause_of, original
from backends.vllm.ray.workers import RayWorkers
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.errors import ConfigError, EngineDead

context = ActorDiedErrorContext(
    error_message="The actor is dead because its node has died.", class_name="W", actor_id=b"a" * 16, pid=7,
    node_ip_address="10.0.0.2", ray_namespace="n", name="w",
)
print(cause_of(ActorDiedError(context)))
print(cause_of(ActorUnavailableError("The actor is temporarily unavailable.", b"a" * 16)))
print(cause_of(RayTaskError("run", "Traceback", RuntimeError("out of memory\\nand more"))))
print(cause_of(RuntimeError("")), cause_of(None), sep="|")
print(repr(original(RayTaskError("run", "Traceback", ValueError("no such layer")))))
lost = original(ActorDiedError(context))
print(lost, type(load_failure(ConfigError(""), lost)).__name__)
imported = RayTaskError("init", "Traceback\\nModuleNotFoundError: No module named 'backends'", ImportError(""))
print(original(ActorDiedError(imported)))

workers = RayWorkers.__new__(RayWorkers)
first, second = Future(), Future()
workers._ends = [("worker 0", first), ("worker 1", second)]
workers.check_health()
workers.check_health(patience=0.01)
second.set_exception(RuntimeError("broken"))
try:
    workers.check_health(patience=60)
except EngineDead as error:
    print(error)
"""

VARIABLES = """
from backends.vllm.ray.placement import withhold_variables
from vllm.v1.executor.ray_env_utils import get_driver_env_vars

withhold_variables()
names = {"API_KEY", "HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "ANYTHING", "RAY_AUTH_TOKEN"}
names |= {"NCCL_HIDDEN", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "VLLM_LOGGING_LEVEL", "EXTRA"}
print(*sorted(names & get_driver_env_vars(set()).keys()))
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What both scripts print. One process runs them, because it imports vLLM and Ray, which takes longest."""
    secret = dict.fromkeys(
        ("API_KEY", "HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "RAY_AUTH_TOKEN"), "sesame"
    )
    others = {"ANYTHING": "x", "NCCL_HIDDEN": "x", "NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "lo", "EXTRA": "x"}
    options = {"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "EXTRA", "LMI_REDACTED_KEYS": "NCCL_H*"}
    environ = os.environ | secret | others | options | {"VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", CAUSES + VARIABLES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, env=environ)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_causes_are_one_line(printed: list[str]) -> None:
    assert printed[:-1] == [
        "The actor is dead because its node has died.",
        "Ray has lost the connection to it",
        "out of memory",
        "RuntimeError|it has ended",
        "ValueError('no such layer')",
        "[Errno 104] a worker has died: The actor is dead because its node has died. LoadFailed",
        "[Errno 104] a worker has died: ModuleNotFoundError: No module named 'backends'",
        "worker 1 has died: broken",
    ]


def test_workers_get_no_secrets(printed: list[str]) -> None:
    assert printed[-1].split() == ["EXTRA", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "VLLM_LOGGING_LEVEL"]
