"""Formatters on a real model: those of an adapter, and the tokenizer that they get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lora import write_adapter
from serving import Server

pytestmark = pytest.mark.long

OWN = """
import naming
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    decoded_payload["inputs"] = tokenizer.decode(tokenizer.encode(decoded_payload["inputs"])[:3])
    return decoded_payload


@output_formatter
def write(response: dict) -> dict:
    response["by"] = naming.NAME
    return response
"""

ADAPTERS = """
import json

import naming
from djl_python.output_formatter import TextGenerationOutput, output_formatter


@output_formatter
def write(request_output: TextGenerationOutput) -> str:
    if not request_output.finished:
        return ""
    prompt = [token.text for token in request_output.prompt_tokens_details]
    return json.dumps({"by": naming.NAME, "prompt": prompt, "adapter": request_output.input.adapters}) + "\\n"
"""


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("formatters") / "m"
    write_adapter(directory / "adapters" / "loud", 0, layers=2, width=128)
    write_adapter(directory / "adapters" / "quiet", 0, layers=2, width=128)
    (directory / "model.py").write_text(OWN)
    (directory / "naming.py").write_text("NAME = 'base'\n")
    (directory / "adapters" / "loud" / "model.py").write_text(ADAPTERS)
    (directory / "adapters" / "loud" / "naming.py").write_text("NAME = 'loud'\n")
    properties = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.enable_lora=true\n"
    server = Server(directory, properties + "option.dtype=fp32\n", "--workers", "1")
    yield server.wait_ready()
    server.stop()


BODY = {"inputs": "one two three four five", "parameters": {"max_new_tokens": 2}}


def test_the_tokenizer_of_the_model_is_at_hand(server: Server) -> None:
    answer = server.invoke(BODY | {"parameters": {"max_new_tokens": 2, "details": True}}).json()
    assert answer["by"] == "base"
    assert answer["details"]["inputs"] == "one two three"


@pytest.mark.parametrize("place", ["body", "header", "query"])
def test_an_adapters_requests_use_its_own_formatter(server: Server, place: str) -> None:
    body = BODY | {"adapters": "loud"} if place == "body" else BODY
    headers = {"X-Amzn-SageMaker-Adapter-Identifier": "loud"} if place == "header" else {}
    path = "/invocations?adapter=loud" if place == "query" else "/invocations"
    answer = server.invoke(body, headers=headers, path=path)
    assert json.loads(answer.content) == {"by": "loud", "prompt": ["one", " two", " three"], "adapter": "loud"}


def test_an_adapter_without_formatters_uses_the_models(server: Server) -> None:
    assert server.invoke(BODY | {"adapters": "quiet"}).json()["by"] == "base"


def test_streams_are_formatted(server: Server) -> None:
    lines = server.invoke(BODY | {"stream": True}).content.splitlines()
    assert [json.loads(line)["by"] for line in lines] == ["base", "base"]
