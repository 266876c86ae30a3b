"""A server for a task: its routes, batches, checks at start-up and clients."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
import requests
from botocore.config import Config
from facts import says
from huggingface_hub import InferenceClient
from serving import Server, lmi_check
from tiny_tasks import save_task_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = save_task_model("BertForSequenceClassification", tmp_path_factory.mktemp("tasks") / "m")
    properties = "batch_size=8\nmax_batch_delay=300\noption.dtype=fp32\n"
    server = Server(directory, properties, "--local-runtime", environ={"OMP_NUM_THREADS": "1"})
    yield server.wait_ready()
    server.stop()


def post(server: Server, body: object) -> requests.Response:
    return requests.post(f"{server.url}/invocations", json=body, timeout=60)


def check(directory: Path, properties: str) -> subprocess.CompletedProcess[str]:
    (directory / "serving.properties").write_text(properties)
    return lmi_check(directory)


def test_bad_requests_in_a_batch(server: Server) -> None:
    bodies = [{"inputs": "a cat"}, {"inputs": "a cat", "parameters": {"x": 1}}, {"inputs": "cat " * 100}, [[]]] * 2
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda body: post(server, body), bodies))
    assert [answer.status_code for answer in found] == [200, 424, 424, 424] * 2
    assert found[0].content == found[4].content
    assert found[0].headers["Content-Type"] == "application/json"
    assert says(found[1].json()["error"], "parameters.x: not parameter top_k")
    assert says(found[2].json()["error"], "inputs: text 102")
    assert "Traceback" not in server.log
    assert requests.get(f"{server.url}/ping", timeout=60).status_code == 200


def test_boto3(server: Server) -> None:
    config = Config(retries={"total_max_attempts": 1})
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=config,
    )
    answer = client.invoke_endpoint(EndpointName="e", ContentType="application/json", Body=b'{"inputs": "a cat"}')
    assert answer["Body"].read() == post(server, {"inputs": "a cat"}).content


def test_clients_of_the_hub_post_to_the_root(server: Server) -> None:
    body = {"inputs": "a cat"}
    answer = requests.post(f"{server.url}/", json=body, timeout=60)
    assert (answer.status_code, answer.content) == (200, post(server, body).content)
    client = InferenceClient(server.url, provider="hf-inference")
    best, _ = client.text_classification("a cat", top_k=2)
    assert best.label == answer.json()[0]["label"]


def test_metrics_count_requests(server: Server) -> None:
    post(server, {"inputs": "a cat"})
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    assert "tgi_request_success" in text


def test_check_says_what_will_be_served(tmp_path: Path) -> None:
    directory = save_task_model("BertForTokenClassification", tmp_path / "m")
    ended = check(directory, "")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert says(ended.stdout, "m transformers BertForTokenClassification")
    ended = check(directory, "option.task=ner\noption.rolling_batch=vllm\n")
    assert ended.returncode == 1
    assert says(ended.stderr, "option.task=ner transformers vllm")
    ended = check(directory, "option.task=translation_en_to_de\noption.model_id=/nowhere\n")
    assert says(ended.stderr, "option.model_id: /nowhere not exist")


def test_a_model_that_cannot_do_the_task(tmp_path: Path) -> None:
    directory = save_task_model("ViTForImageClassification", tmp_path / "m")
    server = Server(directory, "option.task=fill-mask\n")
    assert server.process.wait(120) == 1
    assert says(server.log, f"no tokenizer loaded {directory}")
    assert "serialization file" in server.log  # the library's own list of causes, which begins on a line of its own
