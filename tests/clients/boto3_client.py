"""boto3: the three operations of the SageMaker runtime."""

from __future__ import annotations

import json
from typing import Any

import boto3
from calls import Calls, Task, main


def calls(task: Task) -> Calls:
    client = boto3.client("sagemaker-runtime", endpoint_url=task.model, region_name="us-east-1")
    ask: dict[str, Any] = {
        "EndpointName": "mine",
        "ContentType": "application/json",
        "Body": json.dumps({"inputs": task.prompt, "parameters": {"max_new_tokens": 64}}),
    }

    def streamed() -> str:
        events = client.invoke_endpoint_with_response_stream(**ask)["Body"]
        return b"".join(event["PayloadPart"]["Bytes"] for event in events).decode()

    def queued() -> dict[str, str]:
        answer = client.invoke_endpoint_async(**ask)
        return {name: answer[name] for name in ("InferenceId", "OutputLocation", "FailureLocation")}

    return {
        "plain": lambda: json.loads(client.invoke_endpoint(**ask)["Body"].read()),
        "streamed": streamed,
        "queued": queued,
    }


if __name__ == "__main__":
    main(calls)
