"""vLLM's `/classify` and `/pooling` over HTTP, on the echo backend."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
from facts import says
from openapi_documents import document
from prompts import rendered
from serving import Server

from formatters.vllm.pooling import ClassifyFormatter
from lmi_handlers.core.outputs import FinishReason, TextDelta
from lmi_handlers.core.request import GenerationRequest, Prompt

BOUNDS = "option.rolling_batch=echo\noption.max_model_len=40\noption.max_sequences=8\noption.max_text_bytes=20000\n"


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("embedding") / "m", BOUNDS + "option.task=text-embedding\n")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("ranking") / "m", BOUNDS + "option.task=text-ranking\n")
    yield server.wait_ready()
    server.stop()


def valid(answer: requests.Response, name: str, task: str) -> dict[str, Any]:
    """The answer, which its schema in the OpenAPI document describes."""
    assert answer.status_code == 200, answer.text
    components = document(task=task)["components"]
    jsonschema.validate(answer.json(), {"$ref": f"#/components/schemas/{name}", "components": components})
    found: dict[str, Any] = answer.json()
    return found


def test_classes(ranking: Server) -> None:
    answer = valid(ranking.invoke({"input": ["ab", [97]]}, path="/classify"), "ClassifyResponse", "text-ranking")
    assert answer["id"].startswith("classify-")
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 3,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    assert [(item["index"], item["label"], item["num_classes"]) for item in answer["data"]] == [
        (0, "LABEL_0", 1),
        (1, "LABEL_0", 1),
    ]
    raw = ranking.invoke({"input": "ab", "use_activation": False}, path="/classify").json()
    assert [item["probs"] for item in raw["data"]] == [[0.0]]


def test_the_label_is_the_one_with_the_highest_score() -> None:
    request = GenerationRequest(request_id="r", prompts=(Prompt("a"),))
    formatter = ClassifyFormatter(request, rendered(1, "a"), model="m", labels=("no", "yes", "perhaps"))
    scores = array("f", [0.25, 0.5, 0.25]).tobytes()
    formatter.feed(TextDelta(index=0, embedding=scores, finish_reason=FinishReason.STOP_SEQUENCE))
    assert b'{"index":0,"label":"yes","probs":[0.25,0.5,0.25],"num_classes":3}' in formatter.finish()


def test_vectors_are_those_of_embeddings(embedding: Server) -> None:
    body = {"input": ["Hello", "you"]}
    answer = valid(embedding.invoke(body, path="/pooling"), "PoolingResponse", "text-embedding")
    vectors = [item["data"] for item in answer["data"]]
    openai = embedding.invoke(body, path="/v1/embeddings").json()
    assert vectors == [item["embedding"] for item in openai["data"]]
    assert answer["usage"]["total_tokens"] == openai["usage"]["total_tokens"]
    encoded = embedding.invoke(body | {"encoding_format": "base64", "task": "embed"}, path="/pooling").json()
    assert [array("f", base64.b64decode(item["data"])).tolist() for item in encoded["data"]] == vectors
    raw = embedding.invoke(body | {"use_activation": False}, path="/pooling").json()
    unscaled = embedding.invoke(body | {"normalize": False}, path="/v1/embeddings").json()
    assert [item["data"] for item in raw["data"]] == [item["embedding"] for item in unscaled["data"]]


def test_vectors_of_tokens(embedding: Server) -> None:
    body = {"input": "Hello", "task": "token_embed"}
    answer = valid(embedding.invoke(body, path="/pooling"), "PoolingResponse", "text-embedding")
    [vectors] = [item["data"] for item in answer["data"]]
    assert len(vectors) == answer["usage"]["prompt_tokens"]
    assert [math.hypot(*vector) for vector in vectors] == [pytest.approx(1, abs=1e-6)] * len(vectors)
    raw = embedding.invoke(body | {"use_activation": False}, path="/pooling").json()["data"][0]["data"]
    assert [raw] == embedding.invoke({"inputs": "Hello"}, path="/embed_all").json()
    encoded = embedding.invoke(body | {"encoding_format": "base64"}, path="/pooling").json()["data"][0]["data"]
    assert array("f", base64.b64decode(encoded)).tolist() == [number for vector in vectors for number in vector]


def test_scores_of_labels(ranking: Server) -> None:
    classes = ranking.invoke({"input": "ab"}, path="/classify").json()["data"][0]["probs"]
    for task in (None, "classify"):
        answer = valid(
            ranking.invoke({"input": "ab", "task": task}, path="/pooling"), "PoolingResponse", "text-ranking"
        )
        assert answer["data"] == [{"index": 0, "object": "pooling", "data": classes}]


def test_long_texts_lose_the_side_that_is_asked_for(embedding: Server) -> None:
    def vector(**fields: Any) -> Any:
        return embedding.invoke(fields, path="/pooling").json()["data"][0]["data"]

    text = "abcdefgh"
    assert vector(input=text, truncate_prompt_tokens=3) == vector(input="abc")
    assert vector(input=text, truncate_prompt_tokens=3, truncation_side="left") == vector(input="fgh")
    assert vector(input="a" * 50, truncate_prompt_tokens=-1) == vector(input="a" * 40)


BAD = [
    ({}, "required field input"),
    ({"messages": [{"role": "user", "content": "Hi"}]}, "required field input"),
    ({"input": []}, "input: empty"),
    ({"input": ["a", 5]}, "input: token ids"),
    ({"input": {"a": 1}}, "input"),
    ({"input": ["a"] * 9}, "input: 9 8"),
    ({"input": "a" * 41}, "input: 40 41"),
    ({"input": [10**9]}, "input"),
    ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"input": "a", "truncation_side": "up"}, "truncation_side"),
    ({"input": "a", "use_activation": "yes"}, "use_activation"),
    ({"input": "\ud800"}, "body valid JSON"),
]
BAD_POOLING = [
    ({"input": "a", "task": "token_classify"}, "task: token_classify"),
    ({"input": "a", "task": "sparse"}, "task"),
    ({"input": "a", "task": "classify"}, "task: classify"),
    ({"input": "a", "dimensions": 4}, "dimensions"),
    ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
    ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
    ({"input": "a", "endianness": "big"}, "endianness"),
]


def refused(answer: requests.Response, cause: str) -> None:
    assert answer.status_code == 400, answer.text
    assert says(answer.json()["error"]["message"], cause), answer.text


@pytest.mark.parametrize(("body", "cause"), BAD)
def test_bad_bodies(embedding: Server, ranking: Server, body: dict[str, Any], cause: str) -> None:
    refused(embedding.invoke(body, path="/pooling"), cause)
    refused(ranking.invoke(body, path="/classify"), cause)


@pytest.mark.parametrize(("body", "cause"), BAD_POOLING)
def test_bad_bodies_of_pooling(embedding: Server, body: dict[str, Any], cause: str) -> None:
    refused(embedding.invoke(body, path="/pooling"), cause)


def test_each_task_has_its_routes(embedding: Server) -> None:
    assert embedding.invoke({"input": "a"}, path="/classify").status_code == 404
    assert "/pooling" not in document()["paths"]
