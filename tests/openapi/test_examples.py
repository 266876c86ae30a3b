"""The examples of the OpenAPI document: there is one of each body and answer, it is valid, and the server takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
from openapi_documents import document
from serving import Server

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "rolling batch": {},
    "dynamic batch": {"rolling_batch": "disable"},
    "TGI": {"tgi_compat": True},
    "MindIE": {"tgi_compat": True, "dialect": "mindie"},
    "JSON lines": {"output_formatter": "jsonlines"},
    "embeddings": {"task": "text-embedding"},
    "scores": {"task": "text-ranking"},
    "adapters": {"enable_lora": True, "allow_runtime_lora_updating": True},
}
"""Configurations whose routes or bodies differ."""

Content = tuple[str, dict[str, Any]]


def contents(document: dict[str, Any]) -> Iterator[Content]:
    """Yield each media type object of the document, with a name for it."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            bodies = {"body": operation.get("requestBody", {})} | operation["responses"]
            for what, body in bodies.items():
                for content_type, content in body.get("content", {}).items():
                    yield f"{method} {path} {what} {content_type}", content


def examples(content: dict[str, Any]) -> list[Any]:
    return [example["value"] for example in content.get("examples", {}).values()]


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_every_body_and_answer_has_valid_examples(options: dict[str, Any]) -> None:
    described = document(**options)
    wrong = {}
    for name, content in contents(described):
        schema = content["schema"] | {"components": described["components"]}
        validator = jsonschema.Draft202012Validator(schema)
        found = examples(content)
        errors = [error.message for example in found for error in validator.iter_errors(example)]
        if errors or not found:
            wrong[name] = errors
    assert wrong == {}


def test_alternatives_of_a_body_have_an_example_each() -> None:
    body = document()["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["examples"]) == {
        "LmiRequest",
        "AnthropicInvocation",
        "InfillBody",
        "ChatRequest",
        "CompletionRequest",
    }


SERVERS = {"rolling batch": "", "embeddings": "option.task=text-embedding\n", "scores": "option.task=text-ranking\n"}
NOT_THIS_MODELS = ("/embed_sparse", "/infill")
"""Paths that the server answers only with another model of the same `option.task`, also as bodies on the invoke routes."""


@pytest.mark.parametrize("name", SERVERS)
def test_server_takes_every_example(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("examples") / "m", "option.rolling_batch=echo\n" + SERVERS[name])
    refused, sent = {}, 0
    try:
        described = requests.get(f"{server.wait_ready().url}/openapi.json", timeout=60).json()
        for path, methods in described["paths"].items():
            if path in NOT_THIS_MODELS:
                continue
            for content_type, content in methods.get("post", {}).get("requestBody", {}).get("content", {}).items():
                for key, example in content["examples"].items():
                    if key == "InfillBody":
                        continue
                    value = example["value"]
                    data = value if content_type == "text/plain" else json.dumps(value)
                    url = server.url + path.replace("{model}", "m").replace("{version}", "1")
                    answer = requests.post(url, data=data, headers={"Content-Type": content_type}, timeout=60)
                    sent += 1
                    if answer.status_code != 200 or re.search('"error": ?["{]', answer.text):
                        refused[f"{path} {content_type} {key}"] = answer.text[:200]
        assert refused == {}
        assert sent > 10
    finally:
        server.stop()
