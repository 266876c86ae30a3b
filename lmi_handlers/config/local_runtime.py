"""Settings of the local runtime: SageMaker's runtime API, on the container's own port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lmi_handlers.config.environment import integer, switch
from lmi_handlers.core.errors import ConfigError

MAX_CONCURRENCY = 1000
"""AWS's limit for `MaxConcurrentInvocationsPerInstance`."""


class LocalRuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint's configuration says on AWS.

    `split_payload_parts` cuts streams inside records and characters, as AWS may. Without `endpoint_name`, an endpoint of
    any name is found. With `keys_file`, requests must be signed with one of its keys. The `async_` settings are those of
    an `AsyncInferenceConfig`: `s3://` or `file://` URLs of folders for answers and failures, the number of invocations
    at a time, and where notifications are posted to.
    """

    split_payload_parts: bool = False
    endpoint_name: str | None = None
    keys_file: Path | None = None
    async_output: str | None = None
    async_failure: str | None = None
    async_concurrency: int = 4
    async_success_url: str | None = None
    async_error_url: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalRuntimeSettings | None:
        """Read the settings, or return None if the local runtime is off. Raises `ConfigError`."""
        given = {field: environ.get(variable) or None for field, variable in _VARIABLES.items()}
        if not switch(environ, "LMI_LOCAL_RUNTIME"):
            for field, value in given.items():
                if value:
                    raise ConfigError(f"{_VARIABLES[field]}={value} needs --local-runtime")
            return None
        if given["async_output"] is None:
            for field in given:
                if field.startswith("async_") and given[field]:
                    raise ConfigError(f"{_VARIABLES[field]}={given[field]} needs --async-output")
        return cls(
            split_payload_parts=switch(environ, "LMI_SPLIT_PAYLOAD_PARTS"),
            endpoint_name=given["endpoint_name"],
            keys_file=None if given["keys_file"] is None else Path(given["keys_file"]),
            async_output=given["async_output"],
            async_failure=given["async_failure"],
            async_concurrency=integer(
                _VARIABLES["async_concurrency"], given["async_concurrency"] or "4", MAX_CONCURRENCY
            ),
            async_success_url=given["async_success_url"],
            async_error_url=given["async_error_url"],
        )


_VARIABLES = {
    "endpoint_name": "LMI_ENDPOINT_NAME",
    "keys_file": "LMI_LOCAL_RUNTIME_KEYS",
    "async_output": "LMI_ASYNC_OUTPUT",
    "async_failure": "LMI_ASYNC_FAILURE",
    "async_concurrency": "LMI_ASYNC_CONCURRENCY",
    "async_success_url": "LMI_ASYNC_SUCCESS_URL",
    "async_error_url": "LMI_ASYNC_ERROR_URL",
}
