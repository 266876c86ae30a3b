"""The requirements of `option.distributed_executor_backend=ray`. Imports neither Ray nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import check_installed

OPTION = "option.distributed_executor_backend=ray"
ADDRESS_VARIABLE = "RAY_ADDRESS"
_OLD_EXECUTOR_VARIABLE = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
_BUNDLES_VARIABLE = "VLLM_RAY_BUNDLE_INDICES"
_OFF = ("0", "false", "no", "off")


def check_requirements(properties: ServingProperties, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the options or the environment do not fit a cluster."""
    if properties.tensor_parallel_degree == "max":
        raise ConfigError(
            f"option.tensor_parallel_degree has value 'max': must be a number with {OPTION}, because `max` counts the GPUs "
            "of one machine"
        )
    if environ.get(_OLD_EXECUTOR_VARIABLE, "").strip().lower() in _OFF:
        raise ConfigError(
            f"{_OLD_EXECUTOR_VARIABLE} has value {environ[_OLD_EXECUTOR_VARIABLE]!r}: vLLM's older executor does not say "
            "which of its workers has died, so it is not supported"
        )
    if environ.get(_BUNDLES_VARIABLE):
        raise ConfigError(
            f"{_BUNDLES_VARIABLE} has value {environ[_BUNDLES_VARIABLE]!r}: the server reserves the resources"
        )
    address = environ.get(ADDRESS_VARIABLE, "")
    if "://" in address or address == "local":
        raise ConfigError(
            f"{ADDRESS_VARIABLE} has value {address!r}: must be host:port of a cluster that this machine is a node of, or "
            "auto for the one that runs here"
        )
    check_installed("ray", extra="ray", needed_by=OPTION)
