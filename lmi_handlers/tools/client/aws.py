"""Makes calls with boto3, and says in one sentence why one failed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from lmi_handlers.core.install import check_installed
from lmi_handlers.tools.client.answer import failure_cause
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import CallRefused


class Aws:
    """AWS's APIs, in the region and with the credentials that boto3 finds."""

    def __init__(self, region: str | None) -> None:
        check_installed("boto3", extra="aws")
        from lmi_handlers.model_files.s3 import aws_session

        self._session = aws_session(region)

    @property
    def region(self) -> str | None:
        """The region, None if there is none."""
        region: str | None = self._session.region_name
        return region

    @functools.cache  # noqa: B019  lives as long as the process
    def client(self, service: str) -> Any:
        """Return boto3's client. Raises `CallRefused` if there is no region, for example."""
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        # A model may take long to answer, and a request that is repeated costs as much again.
        patient = Config(read_timeout=600, retries={"total_max_attempts": 1})
        try:
            config = patient if service == "sagemaker-runtime" else None
            return self._session.client(service, config=config)  # type: ignore[call-overload]
        except (BotoCoreError, ValueError) as error:
            raise CallRefused(_sentence(error)) from error

    def __call__(self, call: AwsCall) -> dict[str, Any]:
        """Make the call once. Raises `CallRefused`."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = self.client(call.service)
            if call.file is not None:  # in parts, if the file is large
                where = {name: value for name, value in call.parameters.items() if name in ("Bucket", "Key")}
                client.upload_file(call.file, **where, ExtraArgs={"Metadata": call.parameters["Metadata"]})
                return {}
            answer: dict[str, Any] = getattr(client, call.operation)(**call.parameters)
            return answer
        except ClientError as error:
            details = error.response.get("Error", {})
            code = details.get("Code", "")
            message = f"{call.api_name}: {code}: {_cause(error.response)}"
            raise CallRefused(message, code=code, status=error.response.get("OriginalStatusCode")) from error
        except (BotoCoreError, Boto3Error, OSError) as error:
            raise CallRefused(f"{call.api_name}: {_sentence(error)}") from error

    def pages(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of all pages of a listing. Raises `CallRefused`."""
        token: dict[str, str] = {}
        while True:
            answer = self(AwsCall(service, operation, parameters | token))
            yield from answer.get(key, [])
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def find(self, call: AwsCall) -> dict[str, Any] | None:
        """Return the answer, or None if what the call asks for does not exist. Raises `CallRefused`."""
        try:
            return self(call)
        except CallRefused as refused:
            if refused.is_missing:
                return None
            raise


def _cause(response: Mapping[str, Any]) -> str:
    """Return AWS's message, or the model's own if that is what AWS passes on."""
    original = response.get("OriginalMessage")
    if isinstance(original, str):
        return f"{response.get('OriginalStatusCode', '')}: {failure_cause(original.encode())}"
    return _sentence(response.get("Error", {}).get("Message", ""))


def _sentence(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
