"""The environment variables of the engine that vLLM passes on to the workers. By default it passes on all, secrets too."""

from __future__ import annotations

import os

from vllm.platforms import current_platform
from vllm.ray.ray_env import RAY_NON_CARRY_OVER_ENV_VARS, get_env_vars_to_copy

from lmi_handlers.core.redaction import is_hidden, is_secret

_MORE = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
"""Besides those that vLLM lists for its other executors."""


def withhold_variables() -> None:
    """Let workers have only the variables that vLLM lists, or `VLLM_RAY_EXTRA_ENV_VARS_TO_COPY` names, and no secrets."""
    wanted = get_env_vars_to_copy(additional_vars={*current_platform.additional_env_vars, *_MORE})
    RAY_NON_CARRY_OVER_ENV_VARS.update(
        name for name, text in os.environ.items() if name not in wanted or is_secret(name, text) or is_hidden(name)
    )
