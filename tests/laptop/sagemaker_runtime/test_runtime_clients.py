"""Unmodified AWS clients on the local runtime, which checks their signatures. Each script in tests/clients runs once."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_scripts import CLIENTS_PYTHON, PROMPT, QUIET, Outcomes, Run, joined, runner
from paths import ROOT
from s3_server import S3Server
from serving import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

DOUBLED = [{"generated_text": PROMPT * 2}]
"""TGI's answer with the whole text, when the echo backend repeats the prompt."""

CHAT = f"user: {PROMPT}\nassistant: "
VERSION_2 = str(Path(CLIENTS_PYTHON).parents[1] / "sagemaker-v2")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.put("clients", {})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("runtime-clients")
    keys = directory / "keys"
    key, secret = QUIET["AWS_ACCESS_KEY_ID"], QUIET["AWS_SECRET_ACCESS_KEY"]
    keys.write_text(f"[clients]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
    options = ["--local-runtime", "--local-runtime-keys", str(keys), "--async-output", "s3://clients/out"]
    properties = "option.rolling_batch=echo\noption.tgi_compat=true\n"
    server = Server(directory / "m", properties, *options, environ=s3.environ)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def environ(server: Server, s3: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": server.url,
        "AWS_ENDPOINT_URL_S3": s3.environ["AWS_ENDPOINT_URL_S3"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
    }


@pytest.fixture(scope="module")
def run(server: Server, environ: dict[str, str]) -> Run:
    return runner(model=server.url, echo=server.url, full=server.url, stop="", environ=environ)


def streamed_text(body: str) -> str:
    """The text of TGI's events, without the end-of-text token."""
    records = [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line]
    return "".join(record["token"]["text"] for record in records if not record["token"]["special"])


def test_boto3(run: Run) -> None:
    outcomes = run("boto3_client.py", CLIENTS_PYTHON)
    assert outcomes["plain"] == DOUBLED
    assert streamed_text(outcomes["streamed"]) == PROMPT
    assert re.fullmatch(r"s3://clients/out/[0-9a-f-]{36}\.out", outcomes["queued"]["OutputLocation"])


def test_sagemaker_version_2(server: Server, environ: dict[str, str]) -> None:
    version_2 = environ | {"PYTHONPATH": VERSION_2}
    run = runner(model=server.url, echo=server.url, full=server.url, stop="", environ=version_2)
    outcomes = run("sagemaker_v2.py", CLIENTS_PYTHON)
    for call in ("predict", "predict_async", "predict_async_result"):
        assert outcomes[call] == DOUBLED
    assert json.loads(outcomes["predict_bytes"]) == DOUBLED
    assert streamed_text(outcomes["predict_stream"]) == PROMPT
    assert "Received client error (" in outcomes["failed_async"]["error"]


def test_sagemaker_version_3_and_its_token_for_openai(run: Run) -> None:
    outcomes = run("sagemaker_v3.py", CLIENTS_PYTHON)
    assert outcomes["invoke"] == DOUBLED
    assert outcomes["chat"]["choices"][0]["message"]["content"] == CHAT
    assert joined(outcomes["stream"]) == CHAT


def test_langchain_aws(run: Run) -> None:
    outcomes = run("langchain_aws_client.py", CLIENTS_PYTHON)
    assert outcomes["text"] == PROMPT * 2
    assert "".join(outcomes["text_stream"]).startswith(PROMPT)
    assert outcomes["chat"] == "".join(outcomes["chat_stream"]) == CHAT


def test_llama_index(run: Run) -> None:
    outcomes = run("llama_index_client.py", CLIENTS_PYTHON)
    assert outcomes["complete"] == PROMPT
    assert "".join(outcomes["stream"]).startswith(PROMPT)


def test_strands_agents(run: Run) -> None:
    outcomes: Outcomes = run("strands_client.py", CLIENTS_PYTHON)
    for call in ("plain", "streamed"):
        assert outcomes[call] == {"text": f"{CHAT}\n", "reason": "end_turn"}


def test_the_aws_command_of_the_readme(environ: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "sagemaker/README.md").read_text()
    found = re.search(r"^aws (sagemaker-runtime invoke-endpoint (?:.*\\\n)*.*)", page, re.M)
    assert found is not None
    arguments = shlex.split(found[1].replace("\\\n", " "))
    command = [CLIENTS_PYTHON, "-m", "awscli", *arguments]
    variables: dict[str, Any] = {"PATH": os.defpath, "HOME": str(tmp_path), **QUIET, **environ}
    ended = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith('[{"generated_text":')
    assert '"InvokedProductionVariant": "AllTraffic"' in ended.stdout
