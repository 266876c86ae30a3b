"""Create a SageMaker endpoint that runs this container: a model, an endpoint configuration and the endpoint.

python sagemaker/deploy.py --name my-model --image <ecr image> --role <role arn> --model-data s3://bucket/prefix/ --wait
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One SageMaker API call, with boto3's names."""

    operation: str
    parameters: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Make the API calls, or print them with `--dry-run`."""
    arguments = parse(argv)
    calls = list(api_calls(arguments))
    if arguments.dry_run:
        print(json.dumps([call._asdict() for call in calls], indent=2))
        return
    import boto3  # a dry run does not need it

    client: Any = boto3.client("sagemaker", region_name=arguments.region)
    for call in calls:
        print(f"{call.operation} {arguments.name}", flush=True)
        getattr(client, call.operation)(**call.parameters)
    if arguments.wait:
        print("waiting for the endpoint to be in service", flush=True)
        client.get_waiter("endpoint_in_service").wait(EndpointName=arguments.name)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--name", required=True, help="name of the model, the configuration and the endpoint")
    add("--image", required=True, help="image in Amazon ECR, built with sagemaker/Dockerfile")
    add("--role", required=True, help="ARN of the role with which SageMaker reads the image and the model")
    add("--model-data", metavar="S3_URI", help="prefix or .tar.gz with serving.properties at the top level")
    add("--env", metavar="NAME=VALUE", type=variable, action="append", default=[], help="such as HF_MODEL_ID=org/name")
    add("--instance-type", default="ml.g5.xlarge")
    add("--instance-count", type=int, default=1)
    add("--inference-ami-version", help="such as al2-ami-sagemaker-inference-gpu-3-1, for a newer GPU driver")
    add("--volume-size", metavar="GB", type=int, help="disk size, for instance types without local storage")
    add("--startup-timeout", metavar="SECONDS", type=int, default=1200, help="maximum time until the model is loaded")
    add("--download-timeout", metavar="SECONDS", type=int, default=1200, help="maximum time to download the model data")
    add("--network-isolation", action="store_true", help="run the container without network access")
    add("--region", help="defaults to the region that boto3 is configured with")
    add("--wait", action="store_true", help="wait until the endpoint is in service")
    add("--dry-run", action="store_true", help="print the API calls as JSON instead of making them")
    arguments = parser.parse_args(argv)
    if arguments.model_data is None and not arguments.env:
        parser.error("without --model-data, an --env such as HF_MODEL_ID=.. must name the model")
    return arguments


def variable(text: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def api_calls(arguments: argparse.Namespace) -> Iterator[Call]:
    """Yield the API calls in order."""
    container: dict[str, Any] = {"Image": arguments.image}
    if arguments.env:
        container["Environment"] = dict(arguments.env)
    if arguments.model_data:
        container["ModelDataSource"] = {"S3DataSource": model_data_source(arguments.model_data)}
    yield Call(
        "create_model",
        {
            "ModelName": arguments.name,
            "ExecutionRoleArn": arguments.role,
            "PrimaryContainer": container,
            "EnableNetworkIsolation": arguments.network_isolation,
        },
    )
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": arguments.name,
        "InstanceType": arguments.instance_type,
        "InitialInstanceCount": arguments.instance_count,
        "ModelDataDownloadTimeoutInSeconds": arguments.download_timeout,
        "ContainerStartupHealthCheckTimeoutInSeconds": arguments.startup_timeout,
        # Running requests are what keeps a language model busy, so send each request to the instance with the fewest.
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    if arguments.inference_ami_version:
        variant["InferenceAmiVersion"] = arguments.inference_ami_version
    if arguments.volume_size:
        variant["VolumeSizeInGB"] = arguments.volume_size
    yield Call("create_endpoint_config", {"EndpointConfigName": arguments.name, "ProductionVariants": [variant]})
    yield Call("create_endpoint", {"EndpointName": arguments.name, "EndpointConfigName": arguments.name})


def model_data_source(uri: str) -> dict[str, str]:
    """Return the data source for an S3 URI.

    SageMaker unpacks an archive into /opt/ml/model. Files under a prefix are copied there unchanged.
    """
    if uri.endswith(".tar.gz"):
        return {"S3Uri": uri, "S3DataType": "S3Object", "CompressionType": "Gzip"}
    return {"S3Uri": uri if uri.endswith("/") else uri + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}


if __name__ == "__main__":
    main()
