"""boto3: the whole answer at once.

    lmi serve --model-dir examples/tasks/chat --local-runtime
    python examples/clients/boto3_invoke.py "The meaning of life is"

For an endpoint on SageMaker, leave out `endpoint_url` and the keys, and put its name for "local".
"""

from __future__ import annotations

import json
import os
import sys

import boto3

client = boto3.client(
    "sagemaker-runtime",
    endpoint_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080"),
    region_name="us-east-1",
    aws_access_key_id="local",  # signatures are not checked, but boto3 sends nothing without keys
    aws_secret_access_key="local",  # noqa: S106  not a secret
)
body = {"inputs": sys.argv[1] if len(sys.argv) > 1 else "The meaning of life is", "parameters": {"max_new_tokens": 32}}
response = client.invoke_endpoint(EndpointName="local", ContentType="application/json", Body=json.dumps(body))
print(json.load(response["Body"])["generated_text"])
