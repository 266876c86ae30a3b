"""Errors of the runtime API, in AWS's shape and, where users have quoted them, in AWS's words."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from flask import Response

MESSAGE_LIMIT = 2048
"""Maximum characters of `Message` and `OriginalMessage` in a `ModelError`."""

REGION = "us-east-1"
ACCOUNT = "000000000000"
"""Used for the log group that errors mention. It does not exist: the log goes to the server's standard error."""

TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the latency metrics for "
    "each container in Amazon CloudWatch, resolve the issue, and try again."
)


class ServiceError(Exception):
    """An error of the runtime API itself. `kind` names botocore's exception; `fields` is the JSON body."""

    def __init__(self, status: int, kind: str, fields: Mapping[str, object]) -> None:
        super().__init__(str(fields["Message"]))
        self.status = status
        self.kind = kind
        self.fields = fields

    def response(self) -> Response:
        """Render the error. Clients choose their exception by the `x-amzn-ErrorType` header."""
        headers = {"x-amzn-RequestId": str(uuid.uuid4()), "x-amzn-ErrorType": self.kind}
        return Response(json.dumps(self.fields), self.status, headers, content_type="application/json")


def refusal(status: int, kind: str, message: str) -> ServiceError:
    """Return an error that has only a message."""
    return ServiceError(status, kind, {"Message": message})


def validation_error(message: str) -> ServiceError:
    """Return the error for a request that AWS would refuse."""
    return refusal(400, "ValidationError", message)


class ModelError(ServiceError):
    """The container's failure, in AWS's wording. `text` is the container's body, or None if it could not be read.

    `source` is what AWS calls the container: "primary", or "model" in the failures of asynchronous invocations.
    """

    def __init__(self, endpoint: str, status: int, text: str | None, source: str = "primary") -> None:
        log_group = f"/aws/sagemaker/Endpoints/{endpoint[:63]}"
        side = "client" if 400 <= status < 500 else "server"
        head = f"Received {side} error ({status}) from {source}"
        tail = (
            f". See https://{REGION}.console.aws.amazon.com/cloudwatch/home?region={REGION}"
            f"#logEventViewer:group={log_group} in account {ACCOUNT} for more information."
        )
        if text is None:
            cause = " and could not load the entire response body"
        else:
            room = MESSAGE_LIMIT - len(f'{head} with message ""{tail}')
            cause = f' with message "{text[:room]}"'
        fields = {
            "Message": head + cause + tail,
            "OriginalStatusCode": status,
            "OriginalMessage": (text or "")[:MESSAGE_LIMIT],
            "LogStreamArn": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{log_group}",
        }
        super().__init__(424, "ModelError", fields)
