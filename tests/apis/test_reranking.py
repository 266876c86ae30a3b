"""Scores over HTTP, on the echo backend. The score of a pair is the share of the second text's bytes that the first has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from facts import Said, says
from openapi_documents import document
from openapi_spec_validator import validate
from serving import Server

PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=40\noption.task=text-ranking\n"
    "option.max_sequences=8\noption.max_text_bytes=20000\n"
)
QUERY, TEXTS = "abcd", ["abxy", "dcba", "zzzz"]
SHARES = [0.5, 1.0, 0.0]
SIGMOIDS = [pytest.approx(1 / (1 + math.exp(-share)), abs=1e-6) for share in SHARES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("ranking") / "m", PROPERTIES)
    yield server.wait_ready()
    server.stop()


# TEI's


def test_tei_sorts_texts_by_their_scores(server: Server) -> None:
    for path in ("/rerank", "/"):
        answer = server.invoke({"query": QUERY, "texts": TEXTS, "raw_scores": True}, path=path)
        assert answer.content == b'[{"index":1,"score":1.0},{"index":0,"score":0.5},{"index":2,"score":0.0}]'
    answer = server.invoke({"query": QUERY, "texts": TEXTS, "return_text": True}, path="/rerank")
    order = (1, 0, 2)
    assert answer.json() == [{"index": i, "text": TEXTS[i], "score": SIGMOIDS[i]} for i in order]


@pytest.mark.parametrize(
    ("inputs", "scores"),
    [("abcd", 0.0), (["abcd"], 0.0), (["abcd", "dcba"], 1.0), ([["abcd", "dcba"], ["abcd"]], [1.0, 0.0])],
)
def test_tei_predicts_labels(server: Server, inputs: object, scores: Any) -> None:
    answer = server.invoke({"inputs": inputs, "raw_scores": True}, path="/predict").json()
    rows = [[{"score": score, "label": "LABEL_0"}] for score in (scores if isinstance(scores, list) else [scores])]
    assert answer == (rows if isinstance(scores, list) else rows[0])


def test_tei_truncates_the_longer_text_on_request(server: Server) -> None:
    body = {"query": QUERY, "texts": ["a", "z" * 30 + "a" * 30], "raw_scores": True}
    refused = server.invoke(body, path="/rerank")
    assert (refused.status_code, refused.json()) == (
        413,
        {
            "error": Said("texts[1]: 40 64 truncate"),
            "error_type": "Validation",
        },
    )
    for side, share in (("right", 6 / 36), ("left", 30 / 36)):
        ranks = server.invoke(body | {"truncate": True, "truncation_direction": side}, path="/rerank").json()
        assert ranks == [{"index": 0, "score": 1.0}, {"index": 1, "score": pytest.approx(share)}]


@pytest.mark.parametrize(
    ("path", "body", "status", "cause"),
    [
        ("/rerank", {"query": "a", "texts": []}, 413, "texts: empty"),
        ("/rerank", {"query": "", "texts": [""]}, 413, "texts: no tokens"),
        ("/rerank", {"query": "", "texts": ["a", ""]}, 413, "texts[1]: no tokens"),
        ("/rerank", {"query": "a", "texts": ["a"] * 9}, 413, "texts: 9 8"),
        ("/rerank", {"query": "a" * 5000, "texts": ["a"] * 8}, 413, "query: 5000 8"),
        ("/rerank", {"query": "a", "texts": ["\ud800"]}, 400, "body valid JSON"),
        ("/rerank", {"query": "a", "texts": "a"}, 422, "texts: Expected array"),
        ("/rerank", {"texts": ["a"]}, 422, "required field query"),
        ("/rerank", {"query": "a", "texts": ["b"], "truncation_direction": "up"}, 422, "truncation_direction"),
        ("/predict", {"inputs": []}, 413, "inputs: empty"),
        ("/predict", {"inputs": [[]]}, 413, "inputs[0]: texts 0"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 413, "inputs: texts 3"),
        ("/predict", {"inputs": ["a", ["b"]]}, 413, "inputs: texts lists"),
        ("/predict", {"inputs": [["a"]] * 9}, 413, "inputs: 9 prompts"),
    ],
)
def test_tei_bad_requests(server: Server, path: str, body: dict[str, Any], status: int, cause: str) -> None:
    answer = server.invoke(body, path=path)
    assert (answer.status_code, says(answer.json()["error"], cause)) == (status, True), answer.text


def test_the_failure_of_a_text_fails_its_request_alone(server: Server) -> None:
    failed = server.invoke({"query": "a ", "texts": ["fine", "RAISE@1"]}, path="/rerank")
    assert (failed.status_code, failed.json()["error_type"]) == (424, "Backend")
    assert server.invoke({"query": "a", "texts": ["fine"]}, path="/rerank").status_code == 200


def test_ignored_fields_are_named(server: Server) -> None:
    rerank, predict = {"query": "a", "texts": ["a"]}, {"inputs": "a"}
    vllm, score = {"query": "a", "documents": ["a"]}, {"text_1": "a", "text_2": "a"}
    for path, body in (
        ("/rerank", rerank),
        ("/", rerank),
        ("/predict", predict),
        ("/invocations", rerank),
        ("/v1/rerank", vllm),
        ("/score", score),
    ):
        assert server.invoke(body | {"top_a": 1}, path=path).headers["x-lmi-ignored-parameters"] == "top_a"


# vLLM's, Jina's and Cohere's


def test_body_of_vllm_on_teis_route(server: Server) -> None:
    """vLLM has `/rerank` too. The body decides about the answer and about errors."""
    body = {"query": QUERY, "documents": TEXTS, "use_activation": False}
    answer, own = (server.invoke(body, path=path).json() for path in ("/rerank", "/v1/rerank"))
    assert answer["results"] == own["results"]
    assert answer.keys() == own.keys()
    refused = server.invoke({"query": QUERY, "documents": []}, path="/rerank")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")


def test_rerank_sorts_documents(server: Server) -> None:
    for path in ("/v1/rerank", "/v2/rerank", "/invocations"):
        body = {"query": QUERY, "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]], "use_activation": False}
        answer = server.invoke(body | {"model": "any", "top_n": 2}, path=path).json()
        assert answer.pop("id").startswith("score-")
        assert answer == {
            "model": "any",
            "usage": {"prompt_tokens": 24, "total_tokens": 24},
            "results": [
                {"index": 1, "document": {"text": TEXTS[1], "multi_modal": None}, "relevance_score": 1.0},
                {"index": 0, "document": {"text": TEXTS[0], "multi_modal": None}, "relevance_score": 0.5},
            ],
        }
    body = {"query": QUERY, "documents": TEXTS[1], "return_documents": False, "top_n": 0}
    answer = server.invoke(body, path="/v1/rerank").json()
    assert (answer["model"], answer["results"]) == ("m", [{"index": 0, "relevance_score": SIGMOIDS[1]}])


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_scores_keep_the_order(server: Server, names: tuple[str, str]) -> None:
    first, second = names
    usage = {"prompt_tokens": 16, "total_tokens": 16, "completion_tokens": 0, "prompt_tokens_details": None}
    for path in ("/score", "/v1/score", "/invocations"):
        for queries in (QUERY, [QUERY], [QUERY, QUERY]):
            answer = server.invoke({first: queries, second: TEXTS[:2], "use_activation": True}, path=path).json()
            data = [{"index": i, "object": "score", "score": SIGMOIDS[i]} for i in (0, 1)]
            assert (answer["object"], answer["data"], answer["usage"]) == ("list", data, usage)
    (item,) = server.invoke({first: QUERY, second: TEXTS[0]}, path="/score").json()["data"]
    assert item["score"] == SIGMOIDS[0]


def test_rerank_truncates_pairs(server: Server) -> None:
    for keep, share in ((-1, 6 / 36), (20, 0.0)):
        body = {"query": QUERY, "documents": ["z" * 30 + "a" * 30], "truncate_prompt_tokens": keep}
        answer = server.invoke(body | {"use_activation": False}, path="/v1/rerank").json()
        assert answer["results"][0]["relevance_score"] == pytest.approx(share)
        assert answer["usage"]["prompt_tokens"] == (40 if keep == -1 else keep)


@pytest.mark.parametrize(("path", "name"), [("/v1/rerank", "query"), ("/score", "queries")])
def test_a_single_long_document_is_one_document(server: Server, path: str, name: str) -> None:
    body = {name: QUERY, "documents": "z" * 3000, "truncate_prompt_tokens": -1}
    assert server.invoke(body, path=path).json()["usage"]["prompt_tokens"] == 40


@pytest.mark.parametrize(
    ("path", "body", "field", "cause"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "empty"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 9}, "documents", "9 prompts"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "b" * 40]}, "documents", "prompt 2 41"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", ">= 0"),
        ("/v1/rerank", {"query": "a", "documents": [{}]}, "documents[0]", "missing required field text"),
        ("/v2/rerank", {"query": "a" * 5000, "documents": ["b"] * 8}, "query", "8 texts"),
        ("/score", {"text_1": "a"}, None, "text_1 text_2 queries"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "text text_2 1"),
        ("/score", {"text_1": [], "text_2": []}, "text_1", "empty"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2", "empty"),
        ("/score", {"text_1": ["a"] * 9, "text_2": ["b"] * 9}, "text_2", "9 prompts"),
    ],
)
def test_vllm_bad_requests(server: Server, path: str, body: dict[str, Any], field: str | None, cause: str) -> None:
    answer = server.invoke(body, path=path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert says(error["message"], cause)


# LMI's


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"query": QUERY, "texts": TEXTS}, [[score] for score in SIGMOIDS]),
        ({"text": QUERY, "text_pair": TEXTS[1]}, [SIGMOIDS[1]]),
        ({"key": QUERY, "value": TEXTS[1]}, [SIGMOIDS[1]]),
        ([{"key": QUERY, "value": TEXTS[1]}, {"text": QUERY, "text_pair": TEXTS[0]}], [[SIGMOIDS[1]], [SIGMOIDS[0]]]),
        ({"inputs": {"text": QUERY, "text_pair": TEXTS[1]}}, [SIGMOIDS[1]]),
        ({"inputs": {"query": QUERY, "texts": TEXTS[:1]}}, [[SIGMOIDS[0]]]),
        ({"inputs": [{"key": QUERY, "value": TEXTS[1]}]}, [[SIGMOIDS[1]]]),
    ],
)
def test_invoke_routes_take_lmis_pairs(server: Server, body: Any, answer: object) -> None:
    for path in ("/invocations", "/predictions/m"):
        assert server.invoke(body, path=path).json() == answer


def test_invoke_routes_truncate_long_texts(server: Server) -> None:
    assert server.invoke({"text": "a", "text_pair": "a" * 10 + "z" * 60}).json() == [
        pytest.approx(1 / (1 + math.exp(-10 / 39)), abs=1e-6)
    ]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"key": "a"}, "query text_pair key"),
        ([{"key": "a", "value": "b"}, {"text": "a"}], "pair 1"),
        ([], "body empty list"),
        ({"query": "a"}, "texts: empty"),
        ({"query": "a", "texts": ["b"] * 9}, "texts: 9 prompts"),
        ([{"key": "a", "value": "b"}] * 9, "inputs: 9 prompts"),
        ({"inputs": "a"}, "inputs: Expected"),
        ({"inputs": []}, "body empty list"),
    ],
)
def test_lmi_bad_requests(server: Server, body: Any, cause: str) -> None:
    answer = server.invoke(body)
    assert (400 <= answer.status_code < 500, says(answer.json()["error"], cause)) == (True, True), answer.text


def test_plain_text_is_no_pair(server: Server) -> None:
    answer = requests.post(f"{server.url}/invocations", data="a", headers={"Content-Type": "text/plain"}, timeout=60)
    assert "must be JSON with two texts" in answer.json()["error"]


# The other tasks


@pytest.mark.parametrize(
    ("path", "body", "status", "cause"),
    [
        ("/v1/completions", {"prompt": "a"}, 404, "scores generates none"),
        ("/v1/embeddings", {"input": "a"}, 404, "scores texts embeddings"),
        ("/embed", {"inputs": "a"}, 404, "option.task=text-embedding"),
    ],
)
def test_a_server_that_scores_does_nothing_else(
    server: Server, path: str, body: dict[str, Any], status: int, cause: str
) -> None:
    answer = server.invoke(body, path=path)
    assert (answer.status_code, says(answer.text, cause)) == (status, True), answer.text


def test_a_server_that_generates_rejects_requests_for_scores(echo_server: Server) -> None:
    answer = echo_server.invoke({"query": "a", "texts": ["a"]}, path="/rerank")
    cause = "this server generates text; scores need a server with option.task=text-ranking"
    assert (answer.status_code, answer.json()) == (404, {"error": cause, "error_type": "Validation"})


@pytest.mark.parametrize("dialect", ["tgi", "tei"])
def test_openapi_document_is_valid(dialect: str) -> None:
    described = document(task="text-ranking", dialect=dialect)
    validate(described)
    assert described["paths"]["/"]["post"]["operationId"] == "compat_rerank"
