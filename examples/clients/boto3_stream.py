"""boto3: each token as soon as it is generated, with an error in the middle of the stream told apart from its end.

A stream that a deadline of the server ends is continued (docs/continuation.md).

    lmi serve --model-dir examples/tasks/chat --local-runtime
    python examples/clients/boto3_stream.py "The meaning of life is"

For an endpoint on SageMaker, leave out `endpoint_url` and the keys, and put its name for "local".
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import boto3


def main() -> None:
    """Print the answer to one prompt."""
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080"),
        region_name="us-east-1",
        aws_access_key_id="local",  # signatures are not checked, but boto3 sends nothing without keys
        aws_secret_access_key="local",  # noqa: S106  not a secret
    )
    prompt = sys.argv[1] if len(sys.argv) > 1 else "The meaning of life is"
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 32}, "stream": True}
    for _ in range(100):  # a server that always has more is left
        details: dict[str, Any] = {}
        response = client.invoke_endpoint_with_response_stream(
            EndpointName="local", ContentType="application/json", Body=json.dumps(body)
        )
        with closing(response["Body"]) as events:  # closing early stops the generation
            for line in lines(events):
                record = json.loads(line)
                details = record.get("details", {})
                if details.get("finish_reason") == "error":
                    sys.exit(record["token"].get("error_msg", "generation failed"))
                print(record["token"]["text"], end="", flush=True)
        if "continuation" not in details:
            break
        body["continuation"] = details["continuation"]
    else:
        sys.exit("the answer is not complete after 100 requests")
    print()


def lines(events: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the lines of an event stream. An event may end anywhere, even inside a character, so it is not a record."""
    rest = b""
    for event in events:
        *complete, rest = (rest + event["PayloadPart"]["Bytes"]).split(b"\n")
        yield from complete
    if rest:
        yield rest


if __name__ == "__main__":
    main()
