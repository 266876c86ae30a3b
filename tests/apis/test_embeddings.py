"""Embeddings over HTTP, on the echo backend, whose vectors count the bytes of the text by their remainder modulo 16."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import huggingface_hub
import openai
import pytest
import requests
from client_scripts import CLIENTS_PYTHON, runner
from facts import Said, says
from openapi_documents import document
from openapi_spec_validator import validate
from serving import Server, StartServer

PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=40\noption.task=text-embedding\n"
    "option.max_sequences=8\n"
)
WRONG_TASK = "this server embeds texts and generates none (option.task=text-embedding)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("embeddings") / "m", PROPERTIES, "--local-runtime")
    yield server.wait_ready()
    server.stop()


def vector(text: str, *, normalize: bool = True, dimensions: int = 16) -> object:
    counts = [sum(byte % 16 == remainder for byte in text.encode()) for remainder in range(dimensions)]
    length = sum(count**2 for count in counts) ** 0.5 if normalize else 1
    return pytest.approx([count / (length or 1) for count in counts], abs=1e-6)


def embed(server: Server, **body: Any) -> requests.Response:
    return server.invoke(body, path="/v1/embeddings")


# OpenAI's


def test_texts_are_embedded_in_their_order_with_usage(server: Server) -> None:
    answer = embed(server, input=["alpha", "be", "gamma"], model="any")
    assert answer.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector(text)}
            for index, text in enumerate(("alpha", "be", "gamma"))
        ],
        "model": "any",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("ab", ["ab"]),
        (["ab"], ["ab"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
        (["ab", [99]], ["ab", "c"]),
    ],
)
def test_forms_of_the_input(server: Server, given: object, texts: list[str]) -> None:
    data = embed(server, input=given).json()["data"]
    assert [item["embedding"] for item in data] == [vector(text) for text in texts]


def test_base64_is_little_endian_float32(server: Server) -> None:
    data = embed(server, input="alpha", encoding_format="base64").json()["data"]
    assert list(struct.unpack("<16f", base64.b64decode(data[0]["embedding"]))) == vector("alpha")


def test_dimensions_and_normalisation(server: Server) -> None:
    for normalize in (True, False):
        (item,) = embed(server, input="alpha", dimensions=3, normalize=normalize).json()["data"]
        assert item["embedding"] == vector("alpha", dimensions=3, normalize=normalize)


def test_truncation_keeps_the_beginning(server: Server) -> None:
    for truncate, kept in ((3, "abc"), (-1, ("abcd" * 20)[:40])):
        answer = embed(server, input="abcd" * 20, truncate_prompt_tokens=truncate).json()
        assert answer["data"][0]["embedding"] == vector(kept)
        assert answer["usage"]["prompt_tokens"] == len(kept)


@pytest.mark.parametrize(
    ("body", "field", "cause"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "no tokens"),
        ({"input": ["a", 1]}, "input", "ids list prompts"),
        ({"input": [5000]}, "input", "ids 0 256"),
        ({"input": ["a"] * 9}, "input", "9 prompts 8"),
        ({"input": "a" * 41}, "input", "maximum context length is 40 tokens"),
        ({"input": "a", "dimensions": 17}, "dimensions", "most 16 17"),
        ({"input": "a", "dimensions": 0}, "dimensions", "least 1 0"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "Invalid enum"),
        ({"inputs": "a"}, None, "missing required field input"),
    ],
)
def test_bad_requests_name_the_field(server: Server, body: dict[str, Any], field: str | None, cause: str) -> None:
    answer = server.invoke(body, path="/v1/embeddings")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert says(error["message"], cause)


def test_a_prompt_of_the_full_length_fits(server: Server) -> None:
    assert embed(server, input="a" * 40).status_code == 200


def test_the_failure_of_an_input_fails_its_request_alone(server: Server) -> None:
    failed = embed(server, input=["RAISE@1", "fine"])
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    assert embed(server, input="fine").status_code == 200


def test_ignored_fields_are_named(server: Server) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"}), ("/", {"inputs": "a"})):
        assert server.invoke(body | {"top_a": 1}, path=path).headers["x-lmi-ignored-parameters"] == "top_a"


# On the invoke routes


def test_invoke_routes_answer_a_text_with_its_vector_and_a_list_with_a_list(server: Server) -> None:
    for path in ("/invocations", "/predictions/m"):
        assert server.invoke({"inputs": "alpha"}, path=path).json() == vector("alpha")
        assert server.invoke({"inputs": ["alpha", "b"]}, path=path).json() == [vector("alpha"), vector("b")]
    assert server.invoke({"inputs": ["alpha"]}).json() == [vector("alpha")]
    text = requests.post(server.url + "/invocations", data="alpha", headers={"Content-Type": "text/plain"}, timeout=60)
    assert text.json() == vector("alpha")


def test_invoke_routes_truncate_long_texts(server: Server) -> None:
    assert server.invoke({"inputs": "abcd" * 20}).json() == vector("abcd" * 10)


def test_invoke_routes_take_openais_bodies(server: Server) -> None:
    assert server.invoke({"input": "alpha"}).json()["data"][0]["embedding"] == vector("alpha")


def test_json_lines_are_answered_line_by_line(server: Server) -> None:
    lines = '{"inputs": "alpha"}\n{"inputs": []}\n{"inputs": ["b"]}\n'
    answer = requests.post(
        f"{server.url}/invocations", data=lines, headers={"Content-Type": "application/jsonlines"}, timeout=60
    )
    first, second, third = map(json.loads, answer.text.splitlines())
    assert (first, third) == (vector("alpha"), [vector("b")])
    assert "inputs" in second["error"]


# TEI's


def test_tei_answers_with_a_list_of_vectors(server: Server) -> None:
    for path in ("/embed", "/"):
        assert server.invoke({"inputs": "alpha"}, path=path).json() == [vector("alpha")]
        assert server.invoke({"inputs": ["alpha", "b"], "normalize": False}, path=path).json() == [
            vector("alpha", normalize=False),
            vector("b", normalize=False),
        ]


def test_tei_truncates_on_request(server: Server) -> None:
    text = "a" * 30 + "b" * 30
    refused = server.invoke({"inputs": text}, path="/embed")
    assert (refused.status_code, refused.json()) == (
        413,
        {"error": Said("inputs: 40 60 truncate"), "error_type": "Validation"},
    )
    for side, kept in (("right", text[:40]), ("left", text[-40:])):
        body = {"inputs": text, "truncate": True, "truncation_direction": side}
        assert server.invoke(body, path="/embed").json() == [vector(kept)]


def test_tei_embeds_each_token(server: Server) -> None:
    answer = server.invoke({"inputs": ["ab", "c"]}, path="/embed_all").json()
    assert answer == [[vector("a"), vector("b")], [vector("c")]]


def test_tei_embeds_sparsely(server: Server) -> None:
    answer = server.invoke({"inputs": ["abb", "c"]}, path="/embed_sparse")
    assert answer.content == b'[[{"index":1,"value":1.0},{"index":2,"value":2.0}],[{"index":3,"value":1.0}]]'


def test_tei_compares_texts(server: Server) -> None:
    inputs = {"source_sentence": "ab", "sentences": ["ba", "bc", "xy"]}
    assert server.invoke({"inputs": inputs}, path="/similarity").content == b"[1.0,0.5,0.0]"
    inputs["sentences"] = ["a" * 50]
    refused = server.invoke({"inputs": inputs}, path="/similarity")
    assert (refused.status_code, says(refused.json()["error"], "inputs[1]: 40 tokens")) == (413, True)
    answer = server.invoke({"inputs": inputs, "parameters": {"truncate": True}}, path="/similarity").json()
    assert answer == [pytest.approx(0.5**0.5)]
    for sentences, cause in (([], "must not be empty"), (["a"] * 8, "asks for 9 prompts")):
        refused = server.invoke({"inputs": inputs | {"sentences": sentences}}, path="/similarity")
        assert (refused.status_code, f"inputs.sentences: {cause}" in refused.json()["error"]) == (413, True)


@pytest.mark.parametrize(
    ("body", "status", "cause"),
    [
        (
            {"inputs": "a", "prompt_name": "query"},
            413,
            "prompt_name: prompts none",
        ),
        ({"inputs": "a", "encoding_format": "base64"}, 422, "encoding_format: Invalid enum"),
        ({"inputs": 1}, 422, "inputs: Expected"),
        ({"inputs": []}, 413, "inputs: empty"),
    ],
)
def test_tei_bad_requests(server: Server, body: dict[str, Any], status: int, cause: str) -> None:
    answer = server.invoke(body, path="/embed")
    assert (answer.status_code, says(answer.json()["error"], cause)) == (status, True), answer.text


def test_dialect_tei_puts_its_answers_on_the_invoke_routes(start_server: StartServer) -> None:
    server = start_server(PROPERTIES + "option.dialect=tei\noption.normalize=false\n")
    assert server.invoke({"inputs": "alpha"}).json() == [vector("alpha", normalize=False)]
    assert embed(server, input="alpha", normalize=True).json()["data"][0]["embedding"] == vector("alpha")


# Aleph Alpha's


def test_aleph_alpha_embeds_one_prompt_or_several(server: Server) -> None:
    body: dict[str, Any]
    body = {"model": "any", "representation": "query", "prompt": [{"type": "text", "data": "alpha", "controls": []}]}
    assert server.invoke(body, path="/semantic_embed").json() == {
        "model_version": "m",
        "embedding": vector("alpha", normalize=False),
        "num_tokens_prompt_total": 5,
    }
    body = {"model": "any", "representation": "symmetric", "normalize": True, "compress_to_size": 4}
    answer = server.invoke(body | {"prompts": ["alpha", "b"]}, path="/batch_semantic_embed").json()
    assert answer == {
        "model_version": "m",
        "embeddings": [vector("alpha", dimensions=4), vector("b", dimensions=4)],
        "num_tokens_prompt_total": 6,
    }


def test_aleph_alpha_errors_name_its_fields(server: Server) -> None:
    body = {"model": "any", "representation": "query", "prompt": "a", "compress_to_size": 128}
    answer = server.invoke(body, path="/semantic_embed")
    assert (answer.status_code, says(answer.json()["error"], "compress_to_size: 16 128")) == (400, True)
    answer = server.invoke(body | {"prompts": []}, path="/batch_semantic_embed")
    assert (answer.status_code, answer.json()["error"]) == (400, "prompts: must not be empty")
    answer = server.invoke(body | {"representation": "other"}, path="/semantic_embed")
    assert (answer.status_code, "representation" in answer.json()["error"]) == (400, True)


# The other task


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 404),
        ("/v1/completions", {"prompt": "a"}, 404),
        ("/invocations", {"prompt": "a"}, 400),
        ("/generate", {"inputs": "a"}, 404),
    ],
)
def test_a_server_that_embeds_rejects_requests_for_text(
    server: Server, path: str, body: dict[str, Any], status: int
) -> None:
    answer = server.invoke(body, path=path)
    assert (answer.status_code, WRONG_TASK in answer.text) == (status, True), answer.text


def test_a_server_that_generates_rejects_requests_for_embeddings(echo_server: Server) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"})):
        answer = echo_server.invoke(body, path=path)
        cause = "embeddings need a server with option.task=text-embedding, or option.chat_embeddings=mean for /v1/embeddings"
        assert (answer.status_code, cause in answer.text) == (404, True), answer.text


def test_dialect_for_text_does_not_hide_the_embeddings() -> None:
    """`option.tgi_compat` chooses TGI's dialect for text, which a server that embeds does not have."""
    bodies = document(task="text-embedding", tgi_compat=True)["paths"]["/invocations"]["post"]["requestBody"]
    kinds = [each["$ref"].rpartition("/")[2] for each in bodies["content"]["application/json"]["schema"]["anyOf"]]
    assert kinds == ["LmiEmbeddingRequest", "EmbeddingsRequest"]


# What the server says about itself


@pytest.mark.parametrize("dialect", ["tgi", "tei"])
def test_openapi_document_is_valid(dialect: str) -> None:
    described = document(task="text-embedding", dialect=dialect)
    validate(described)
    assert described["paths"]["/"]["post"]["operationId"] == "compat_embed"


def test_requests_are_counted(server: Server) -> None:
    def count() -> float:
        page = requests.get(server.url + "/metrics", timeout=60).text
        return sum(
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.startswith("vllm:request_success_total") and 'finished_reason="stop"' in line
        )

    before = count()
    embed(server, input=["a", "b"])
    assert count() == before + 2


def test_openais_client(server: Server) -> None:
    """It asks for base64 by default, and decodes it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(input=["alpha", "b"], model="m", dimensions=8)
    assert [item.embedding for item in answer.data] == [vector("alpha", dimensions=8), vector("b", dimensions=8)]
    assert answer.usage.prompt_tokens == 6


@pytest.mark.needs("numpy")
def test_huggingface_hubs_client(server: Server) -> None:
    client = huggingface_hub.InferenceClient(server.url)
    assert client.feature_extraction("alpha").tolist() == [vector("alpha")]
    assert client.feature_extraction(["alpha", "b"], normalize=False).tolist() == [
        vector("alpha", normalize=False),
        vector("b", normalize=False),
    ]


@pytest.mark.long
def test_langchains_client(server: Server) -> None:
    run = runner(model=server.url, echo=server.url, full=server.url, stop="")
    answers = run("langchain_embeddings.py", CLIENTS_PYTHON)
    expected = [vector("alpha", dimensions=8), vector("b", dimensions=8)]
    assert answers["documents"] == expected
    assert answers["query"] == answers["aquery"] == expected[0]


# TEI's /tokenize, /decode and /info


def test_tei_tokenizes_and_decodes(server: Server) -> None:
    a, b = {"id": 97, "text": "a", "special": False}, {"id": 98, "text": "b", "special": False}
    found = server.invoke({"inputs": "ab"}, path="/tokenize").json()
    assert found == [[a | {"start": 0, "stop": 1}, b | {"start": 1, "stop": 2}]]
    two = server.invoke({"inputs": ["b", "a"], "add_special_tokens": False, "x": 1}, path="/tokenize")
    assert two.json() == [[b | {"start": 0, "stop": 1}], [a | {"start": 0, "stop": 1}]]
    assert two.headers["x-lmi-ignored-parameters"] == "x"
    assert server.invoke({"ids": [97, 98]}, path="/decode").json() == ["ab"]
    assert server.invoke({"ids": [[97], [98, 99]], "skip_special_tokens": False}, path="/decode").json() == ["a", "bc"]


@pytest.mark.parametrize(
    ("path", "body", "status", "cause"),
    [
        ("/tokenize", {"inputs": []}, 413, "inputs: empty"),
        ("/tokenize", {"inputs": ["a"] * 9}, 413, "8 option.max_sequences"),
        ("/tokenize", {"inputs": "a", "prompt_name": "query"}, 413, "name model's prompts"),
        ("/tokenize", {"inputs": ["a" * 40_000, "b" * 40_000]}, 413, "inputs: 65536 tokens"),
        ("/tokenize", {"inputs": "\ud800"}, 400, ""),
        ("/tokenize", {}, 422, "inputs"),
        ("/decode", {"ids": []}, 413, "ids: empty"),
        ("/decode", {"ids": [[1], []]}, 422, "ids[1]"),
        ("/decode", {"ids": [1, [2]]}, 422, "ids: ids lists"),
        ("/decode", {"ids": [[1]] * 9}, 413, "8 option.max_sequences"),
        ("/decode", {"ids": [97] * 65_537}, 413, "ids: 65536 65537"),
        ("/decode", {"ids": [-1]}, 422, "ids[0]"),
        ("/decode", {"ids": [2**32]}, 422, "ids[0]"),
    ],
)
def test_tei_rejects(server: Server, path: str, body: dict[str, Any], status: int, cause: str) -> None:
    answer = server.invoke(body, path=path)
    assert (answer.status_code, answer.json().keys()) == (status, {"error", "error_type"})
    assert says(answer.json()["error"], cause)


def test_tei_describes_the_model(server: Server) -> None:
    info = requests.get(f"{server.url}/info", timeout=60).json()
    assert info["model_type"] == {"embedding": {"pooling": ""}}
    assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (40, 8, False)
    assert info.keys() == {
        "model_id",
        "model_sha",
        "model_dtype",
        "served_model_name",
        "model_type",
        "max_concurrent_requests",
        "max_input_length",
        "max_batch_tokens",
        "max_batch_requests",
        "max_client_batch_size",
        "auto_truncate",
        "tokenization_workers",
        "version",
        "sha",
        "docker_label",
    }
