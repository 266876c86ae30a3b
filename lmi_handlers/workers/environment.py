"""The environment of processes that run a model's own code: everything but the server's credentials.

This is not a sandbox. The code runs as the server's user, who can read the server's files and memory. It keeps keys from
code that has no use for them, and so from what that code logs, reports and installs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "LMI_CODE_VARIABLES"
"""Names, separated by commas, of variables that the code gets although they are listed here."""

_OF_SERVER = (
    "API_KEY",
    "LMI_API_KEY_FILE",
    "LMI_CONTINUATION_KEY",
    "VLLM_API_KEY",
    "SM_VLLM_API_KEY",
    "LMI_LOCAL_RUNTIME_KEYS",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)
"""Only web workers and the processes above them need these."""

_FOR_MODELS = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "SM_VLLM_HF_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "RAY_AUTH_TOKEN",
    "LMI_ENGINE_KEY",
)
"""Processes that get and load models need these. A role's address is not among them, such as
AWS_CONTAINER_CREDENTIALS_RELATIVE_URI: handlers use the role of the endpoint, which was given to the whole container."""


def child_environment(environ: Mapping[str, str], *, gets_models: bool = False) -> dict[str, str]:
    """Return the variables for a child process. One that `gets_models` may need credentials for that."""
    withheld = {*_OF_SERVER} if gets_models else {*_OF_SERVER, *_FOR_MODELS}
    withheld -= {name.strip() for name in environ.get(VARIABLE, "").split(",")}
    return {name: text for name, text in environ.items() if name not in withheld}


def withhold_credentials() -> None:
    """Remove from this process's own variables what code that comes with a model must not find there."""
    for name in os.environ.keys() - child_environment(os.environ).keys():
        del os.environ[name]


def withheld_from_code(environ: Mapping[str, str]) -> list[str]:
    """Return the names of variables that are set, and that code may miss: those with which models are downloaded."""
    given = child_environment(environ)
    return [name for name in _FOR_MODELS if environ.get(name) and name not in given]
