"""boto3: the whole answer at once, or in parts if a deadline of the server ends it (docs/continuation.md).

    lmi serve --model-dir examples/tasks/chat --local-runtime
    python examples/clients/boto3_invoke.py "The meaning of life is"

For an endpoint on SageMaker, leave out `endpoint_url` and the keys, and put its name for "local".
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
    aws_access_key_id="local",  # signatures are not checked, but boto3 sends nothing without keys
    aws_secret_access_key="local",  # noqa: S106  not a secret
)
prompt = sys.argv[1] if len(sys.argv) > 1 else "The meaning of life is"
body: dict[str, Any] = {"inputs": prompt, "parameters": {"max_new_tokens": 32}}
for _ in range(100):  # a server that always has more is left
    response = client.invoke_endpoint(EndpointName="local", ContentType="application/json", Body=json.dumps(body))
    answer = json.load(response["Body"])
    print(answer["generated_text"], end="")
    if "continuation" not in answer:
        break
    body["continuation"] = answer["continuation"]
else:
    sys.exit("the answer is not complete after 100 requests")
print()
