"""boto3's client of SageMaker's runtime API, for a local server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient


def runtime_client(url: str, key: str = "test", config: Config | None = None) -> SageMakerRuntimeClient:
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="eu-central-1",
        aws_access_key_id=key,
        aws_secret_access_key="test",
        config=config,
    )
    client.meta.events.register("before-send.sagemaker-runtime", close_connection)
    return client


def close_connection(request: AWSPreparedRequest, **_: object) -> None:
    """Use a new connection for each request, because urllib3 does not close the ones it keeps reliably."""
    request.headers["Connection"] = "close"
