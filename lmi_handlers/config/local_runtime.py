"""Settings of the local runtime: SageMaker's runtime API, on the container's own port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from lmi_handlers.config.environment import Variable, declared_variables, read_values, shown
from lmi_handlers.core.errors import ConfigError

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=1000)]
"""The upper limit is AWS's for `MaxConcurrentInvocationsPerInstance`."""


class LocalRuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint's configuration, as it would be on AWS. Without `enabled`, there is no local runtime.

    Without `endpoint_name`, an endpoint of any name is found. With `keys_file`, requests must be signed with one of its
    keys. The `async_` settings are those of an `AsyncInferenceConfig`.
    """

    enabled: Annotated[
        bool,
        Variable(
            "LMI_LOCAL_RUNTIME",
            "Also serve SageMaker's runtime API, so that boto3 works without changes.",
            flag="--local-runtime",
        ),
    ] = False
    split_payload_parts: Annotated[
        bool,
        Variable(
            "LMI_SPLIT_PAYLOAD_PARTS",
            "Make the local runtime split streams inside records and characters, as AWS may.",
            flag="--split-payload-parts",
        ),
    ] = False
    endpoint_name: Annotated[
        str | None,
        Variable(
            "LMI_ENDPOINT_NAME",
            "The only endpoint that the local runtime has. By default, it answers to any name.",
            flag="--endpoint-name",
        ),
    ] = None
    keys_file: Annotated[
        Path | None,
        Variable(
            "LMI_LOCAL_RUNTIME_KEYS",
            "Check signatures with the access keys in this file, which has the format of ~/.aws/credentials.",
            flag="--local-runtime-keys",
            metavar="FILE",
            read=Path,
        ),
    ] = None
    faults_file: Annotated[
        Path | None,
        Variable(
            "LMI_LOCAL_RUNTIME_FAULTS",
            "Let requests fail as this file says, to test clients.",
            flag="--local-runtime-faults",
            metavar="FILE",
            read=Path,
        ),
    ] = None
    capture_folder: Annotated[
        Path | None,
        Variable(
            "LMI_LOCAL_RUNTIME_CAPTURE",
            "Write requests and answers to this folder, as SageMaker's Data Capture does.",
            flag="--local-runtime-capture",
            metavar="FOLDER",
            read=Path,
        ),
    ] = None
    async_output: Annotated[
        str | None,
        Variable(
            "LMI_ASYNC_OUTPUT",
            "Answer asynchronous invocations, and write the answers here: s3://bucket/prefix or file:///folder.",
            flag="--async-output",
            metavar="URL",
        ),
    ] = None
    async_failure: Annotated[
        str | None,
        Variable(
            "LMI_ASYNC_FAILURE",
            "Where failures are written. Defaults to --async-output.",
            flag="--async-failure",
            metavar="URL",
        ),
    ] = None
    async_concurrency: Annotated[
        Concurrency,
        Variable(
            "LMI_ASYNC_CONCURRENCY",
            "Number of asynchronous invocations at a time. Defaults to 4.",
            flag="--async-concurrency",
        ),
    ] = 4
    async_success_url: Annotated[
        str | None,
        Variable(
            "LMI_ASYNC_SUCCESS_URL",
            "Where to post a notification when an asynchronous invocation succeeds.",
            flag="--async-success-url",
            metavar="URL",
        ),
    ] = None
    async_error_url: Annotated[
        str | None,
        Variable(
            "LMI_ASYNC_ERROR_URL",
            "Where to post a notification when it fails.",
            flag="--async-error-url",
            metavar="URL",
        ),
    ] = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalRuntimeSettings:
        """Read the settings. Raises `ConfigError`, also if one is set that has no effect without another."""
        settings = cls(**read_values(cls, environ))
        declared = declared_variables(cls)
        without_effect = () if settings.enabled else tuple(declared)
        needed = "--local-runtime"
        if settings.enabled and settings.async_output is None:
            without_effect, needed = tuple(name for name in declared if name.startswith("async_")), "--async-output"
        for name in without_effect:
            found = declared[name].given(environ)
            if found is not None and declared[name].types != (bool,):
                raise ConfigError(f"{found[0]}={shown(*found)} needs {needed}")
        return settings
