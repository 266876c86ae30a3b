"""Call a server with boto3: `lmi serve --local-runtime` on this machine, or without --url an endpoint on SageMaker."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient


def main() -> None:
    """Print the answer to one prompt, first all at once and then token by token."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--endpoint", default="local", help="name of the endpoint; the local runtime accepts any")
    parser.add_argument("prompt", nargs="?", default="The meaning of life is")
    arguments = parser.parse_args()

    client = runtime_client(arguments.url)
    print(generate(client, arguments.endpoint, arguments.prompt))
    for text in stream(client, arguments.endpoint, arguments.prompt):
        print(text, end="", flush=True)
    print()


def runtime_client(url: str | None) -> SageMakerRuntimeClient:
    """Return AWS's own client.

    The local server does not check signatures, but boto3 sends nothing without credentials.
    """
    if url is None:
        return boto3.client("sagemaker-runtime")
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106  not a secret
    )


def generate(client: SageMakerRuntimeClient, endpoint: str, prompt: str) -> str:
    """Return the whole text at once."""
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 64}}
    response = client.invoke_endpoint(EndpointName=endpoint, ContentType="application/json", Body=json.dumps(body))
    answer: dict[str, str] = json.loads(response["Body"].read())
    return answer["generated_text"]


def stream(client: SageMakerRuntimeClient, endpoint: str, prompt: str) -> Iterator[str]:
    """Yield the text as it is generated. Raises `RuntimeError` if generation fails midway."""
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 64}, "stream": True}
    response = client.invoke_endpoint_with_response_stream(
        EndpointName=endpoint, ContentType="application/json", Body=json.dumps(body)
    )
    with closing(response["Body"]) as events:  # closing early stops the generation
        for line in lines(events):
            record = json.loads(line)
            if record.get("details", {}).get("finish_reason") == "error":
                raise RuntimeError(record["token"].get("error_msg", "generation failed"))
            yield record["token"]["text"]


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
