"""A session of SageMaker: all its requests go to the same instance, which remembers what was said.

lmi serve --model-dir examples/tasks/sessions --local-runtime
python examples/tasks/sessions/ask_session.py "My name is Ada." "What is my name?"
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import boto3

client = boto3.client(
    "sagemaker-runtime",
    endpoint_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080"),
    region_name="us-east-1",
    aws_access_key_id="local",
    aws_secret_access_key="local",  # noqa: S106  not a secret
)


def invoke(body: dict[str, Any], session: str) -> Any:
    """Send a request of a session."""
    return client.invoke_endpoint(
        EndpointName="local", ContentType="application/json", Body=json.dumps(body), SessionId=session
    )


session = invoke({"requestType": "NEW_SESSION"}, "NEW_SESSION")["NewSessionId"].split(";")[0]
for question in sys.argv[1:]:
    answer = invoke({"messages": [{"role": "user", "content": question}], "max_tokens": 32}, session)
    print(json.load(answer["Body"])["choices"][0]["message"]["content"])
print("closed", invoke({"requestType": "CLOSE"}, session)["ClosedSessionId"] == session)
