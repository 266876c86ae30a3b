"""TGI's routes on real servers: answers, streams, headers, `/invocations` with `tgi_compat`, and TGI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from facts import says
from huggingface_hub import InferenceClient
from huggingface_hub.errors import GenerationError, ValidationError
from paths import RECORDINGS
from server_sent_events import json_events
from serving import Server

from backends import registry
from lmi_handlers.config.properties import load_properties
from lmi_handlers.config.variables import TGI

BODIES: dict[str, dict[str, Any]] = json.loads((RECORDINGS / "tgi" / "wire_bodies.json").read_text())
ECHO = "option.rolling_batch=echo\n"


def post(server: Server, path: str, inputs: str, **parameters: Any) -> requests.Response:
    body: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if "stream" in parameters:
        body["stream"] = parameters.pop("stream")
    answer = server.invoke(body, path=path)
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: requests.Response) -> list[dict[str, Any]]:
    assert answer.headers["Content-Type"] == "text/event-stream"
    return json_events(answer.content.decode())


# Routes and frames


def test_generate(echo_server: Server) -> None:
    assert post(echo_server, "/generate", "hello").text == '{"generated_text":"hello"}'


@pytest.mark.parametrize("path", ["/", "/invocations", "/predictions/m", "/models/m/invoke"])
def test_array_with_the_prompt_prepended(compat_server: Server, path: str) -> None:
    assert post(compat_server, path, "hello").text == '[{"generated_text":"hellohello"}]'
    assert post(compat_server, path, "hello", return_full_text=False).text == '[{"generated_text":"hello"}]'


def test_without_tgi_compat_invocations_speaks_lmi(echo_server: Server) -> None:
    assert post(echo_server, "/invocations", "hello").text == '{"generated_text": "hello"}'


def test_route_determines_whether_to_stream(echo_server: Server) -> None:
    assert post(echo_server, "/generate", "hello", stream=True).headers["Content-Type"] == "application/json"
    assert events(post(echo_server, "/generate_stream", "hello", stream=False))[-1]["generated_text"] == "hello"


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_body_determines_whether_to_stream(compat_server: Server, path: str) -> None:
    last = events(post(compat_server, path, "hé", stream=True, details=True, max_new_tokens=3))[-1]
    assert last["generated_text"] == "héhé"
    assert last["details"] == {"finish_reason": "length", "generated_tokens": 3, "seed": None, "input_length": 3}


def test_character_of_several_tokens_is_sent_with_the_last_one(echo_server: Server) -> None:
    tokens = [event["token"]["text"] for event in events(post(echo_server, "/generate_stream", "é🙂"))]
    assert tokens == ["", "é", "", "", "", "🙂", "<|endoftext|>"]


def test_end_of_sequence_is_a_special_token_with_its_text(echo_server: Server) -> None:
    last = events(post(echo_server, "/generate_stream", "a", details=True))[-1]
    assert last["token"] == {"id": 256, "text": "<|endoftext|>", "logprob": -0.5, "special": True}
    assert last["generated_text"] == "a"
    assert last["details"]["finish_reason"] == "eos_token"


def test_info(echo_server: Server) -> None:
    info = requests.get(echo_server.url + "/info", timeout=60).json()
    older = (
        "model_dtype",
        "model_device_type",
        "max_input_length",
        "waiting_served_ratio",
        "max_batch_total_tokens",
        "max_waiting_tokens",
    )
    assert list(info) == [*BODIES["info"]["json"], *older]
    assert [info[name] for name in older] == [None, "cpu", 4095, 0.0, 32 * 4096, 0]
    assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == ("m", 4095, 4096)


@pytest.mark.parametrize("path", ["/", "/health"])
def test_health(echo_server: Server, path: str) -> None:
    answer = requests.get(echo_server.url + path, timeout=60)
    assert (answer.status_code, answer.content) == (200, b"")


def test_batch_of_records(compat_server: Server) -> None:
    records = [{"inputs": "a"}, {"inputs": "b", "parameters": {"top_p": 1}}, {"inputs": "c", "stream": True}]
    body = "\n".join(map(json.dumps, records))
    answer = compat_server.invoke(data=body.encode(), headers={"Content-Type": "application/jsonlines"})
    first, second, third = answer.text.splitlines()
    assert first == '[{"generated_text":"aa"}]'
    assert json.loads(second)["error"] == "Input validation error: `top_p` must be > 0.0 and < 1.0"
    assert json.loads(third)["error"].startswith("Input validation error: stream: is not supported in a batch")


def test_plain_text_is_a_prompt_on_invocations_only(compat_server: Server) -> None:
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    answer = compat_server.invoke(data="grüße".encode(), headers=headers)
    assert answer.json() == [{"generated_text": "grüßegrüße"}]
    refused = compat_server.invoke(data=b"hello", path="/generate", headers=headers)
    assert (refused.status_code, refused.json()["error_type"]) == (415, "validation")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.api+json"])
def test_kinds_of_json(echo_server: Server, content_type: str) -> None:
    answer = echo_server.invoke(data=b'{"inputs":"a"}', path="/generate", headers={"Content-Type": content_type})
    assert answer.json() == {"generated_text": "a"}


def test_body_over_the_limit(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "x" * 2_000_000}, path="/generate")
    assert (answer.status_code, answer.json()["error_type"]) == (413, "validation")


# Tokens


def test_tokenize_counts_bytes(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "aé"}, path="/tokenize")
    assert answer.text == (
        '[{"id":97,"text":"a","start":0,"stop":1},{"id":195,"text":"é","start":1,"stop":3},'
        '{"id":169,"text":"é","start":1,"stop":3}]'
    )


def test_tokenize_does_not_block_the_worker(echo_server: Server) -> None:
    assert len(echo_server.invoke({"inputs": "a" * 65_536}, path="/tokenize").json()) == 65_536
    for path, body in (
        ("/tokenize", {"inputs": "a" * 100_000}),
        ("/chat_tokenize", {"messages": [{"role": "user", "content": "a" * 100_000}]}),
    ):
        answer = echo_server.invoke(body, path=path)
        assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
        message = answer.json()["error"]
        given = re.fullmatch(
            r"Input validation error: `inputs` must have less than 65536 tokens. Given: (\d+)", message
        )
        assert given is not None, message
        assert int(given[1]) == pytest.approx(100_000, rel=0.01)


def test_tokenize_spans_add_up(model_server_once: Server) -> None:
    text = "Grüße, 日本 🙂!"
    spans = model_server_once.invoke({"inputs": text}, path="/tokenize").json()
    for span in spans:
        assert text.encode()[span["start"] : span["stop"]].decode() == span["text"]
    assert {byte for span in spans for byte in range(span["start"], span["stop"])} == set(range(len(text.encode())))


def test_chat_tokenize(echo_server: Server) -> None:
    content = [{"type": "text", "text": "Hi "}, {"type": "image_url", "image_url": {"url": "u"}}]
    body = {
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": content}],
        "model": "tgi",
    }
    answer = echo_server.invoke(body, path="/chat_tokenize").json()
    assert list(answer) == ["tokenize_response", "templated_text"]
    assert answer["templated_text"] == "system: Be kind.\nuser: Hi ![](u)\nassistant: "
    assert "".join(span["text"] for span in answer["tokenize_response"]) == answer["templated_text"]


@pytest.mark.parametrize(
    ("body", "status", "error_type", "words"),
    [
        ({}, 422, "validation", "messages"),
        ({"messages": [{"content": "x"}]}, 422, "validation", "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 422, "validation", "messages[0].content[0]"),
        ({"messages": [{"role": "user"}]}, 422, "template_error", "Template error: "),
    ],
)
def test_chat_that_cannot_be_rendered(
    echo_server: Server, body: dict[str, Any], status: int, error_type: str, words: str
) -> None:
    answer = echo_server.invoke(body, path="/chat_tokenize")
    assert (answer.status_code, answer.json()["error_type"]) == (status, error_type)
    assert words in answer.json()["error"]


# Headers


def test_headers_of_an_answer(echo_server: Server) -> None:
    headers = post(echo_server, "/generate", "grüße", max_new_tokens=3).headers
    assert headers["x-compute-type"] == "cpu+optimized"
    assert (headers["x-compute-characters"], headers["x-prompt-tokens"], headers["x-generated-tokens"]) == (
        "5",
        "7",
        "3",
    )
    times = [
        int(headers[f"x-{name}"]) for name in ("validation-time", "queue-time", "inference-time", "time-per-token")
    ]
    assert all(0 <= time <= int(headers["x-total-time"]) for time in times)
    assert int(headers["x-total-time"]) == int(float(headers["x-compute-time"]) * 1000)


def test_headers_of_a_stream(echo_server: Server) -> None:
    headers = post(echo_server, "/generate_stream", "grüße").headers
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("cpu+optimized", "5")
    assert (headers["x-accel-buffering"], headers["Cache-Control"]) == ("no", "no-cache")
    assert "x-total-time" not in headers


def test_headers_of_invocations(compat_server: Server) -> None:
    assert post(compat_server, "/invocations", "hello").headers["x-prompt-tokens"] == "5"


def test_ignored_fields_are_named(echo_server: Server) -> None:
    assert post(echo_server, "/generate", "a", top_a=1).headers["x-lmi-ignored-parameters"] == "top_a"


# A model


@pytest.mark.model
def test_stop_string_inside_a_token_stays_in_the_text(model_server_once: Server) -> None:
    whole = post(model_server_once, "/generate", "Once upon a time", max_new_tokens=12, details=True).json()
    word = next(token["text"] for token in whole["details"]["tokens"][2:] if len(token["text"].strip()) > 3)
    stop = word.strip()[:-1]
    cut = post(model_server_once, "/generate", "Once upon a time", max_new_tokens=12, details=True, stop=[stop]).json()
    assert cut["details"]["finish_reason"] == "stop_sequence"
    assert cut["generated_text"].endswith(stop)
    assert whole["generated_text"].startswith(cut["generated_text"])
    assert "".join(token["text"] for token in cut["details"]["tokens"]) == cut["generated_text"]


@pytest.mark.model
def test_the_reported_seed_reproduces_the_text(model_server_once: Server) -> None:
    asked = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 16, "details": True}
    first = post(model_server_once, "/generate", "My favourite", **asked).json()
    again = post(model_server_once, "/generate", "My favourite", **asked, seed=first["details"]["seed"]).json()
    assert again == first
    other = post(model_server_once, "/generate", "My favourite", **asked).json()
    assert other["details"]["seed"] != first["details"]["seed"]


@pytest.mark.model
def test_best_of_shows_the_most_probable_first(model_server_once: Server) -> None:
    asked = {"do_sample": True, "best_of": 2, "max_new_tokens": 8, "details": True, "temperature": 1.2}
    details = post(model_server_once, "/generate", "My favourite", **asked).json()["details"]
    [other] = details["best_of_sequences"]
    assert mean_logprob(details) >= mean_logprob(other)
    assert details["seed"] != other["seed"]


def mean_logprob(details: dict[str, Any]) -> float:
    logprobs: list[float] = [token["logprob"] for token in details["tokens"]]
    return sum(logprobs) / len(logprobs)


@pytest.mark.model
def test_prompt_tokens_and_truncate(model_server_once: Server) -> None:
    prompt = "The capital of France is"
    asked = {"max_new_tokens": 1, "decoder_input_details": True, "truncate": 3}
    prefill = post(model_server_once, "/generate", prompt, **asked).json()["details"]["prefill"]
    assert [token["text"] for token in prefill] == [" of", " France", " is"]
    assert prefill[0]["logprob"] is None
    assert all(token["logprob"] < 0 for token in prefill[1:])


@pytest.mark.model
def test_unknown_adapter(model_server_once: Server) -> None:
    answer = model_server_once.invoke({"inputs": "a", "parameters": {"adapter_id": "french"}}, path="/generate")
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert "adapter_id" in answer.json()["error"]


def test_exactly_as_many_tokens_as_requested(echo_server: Server) -> None:
    answer = post(echo_server, "/generate", "x" * 1600, max_new_tokens=1500, details=True).json()
    assert answer["details"]["generated_tokens"] == 1500


@pytest.fixture(scope="module")
def limited_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with limits from the TGI launcher's environment variables."""
    limits = {"MAX_INPUT_LENGTH": "10", "MAX_TOTAL_TOKENS": "16", "MAX_BEST_OF": "1", "MAX_CONCURRENT_REQUESTS": "3"}
    server = Server(tmp_path_factory.mktemp("limited") / "m", ECHO, environ=limits)
    yield server.wait_ready()
    server.stop()


def test_default_number_of_tokens_is_limited_by_the_context(limited_server: Server) -> None:
    details = post(limited_server, "/generate", "0123456789", details=True).json()["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 6)


# TGI's own client


def test_huggingface_client(compat_server: Server) -> None:
    for path in ("", "/invocations"):
        client = InferenceClient(compat_server.url + path)
        assert client.text_generation("hello", max_new_tokens=3, return_full_text=False) == "hel"
        answer = client.text_generation("hello", details=True, decoder_input_details=True, return_full_text=False)
        assert (answer.generated_text, answer.details.finish_reason) == ("hello", "eos_token")  # type: ignore[union-attr]
        assert "".join(client.text_generation("hello", max_new_tokens=5, stream=True)) == "hello"
        *_, last = client.text_generation("hello", stream=True, details=True, return_full_text=False)
        assert last.generated_text == "hello"


def test_errors_of_the_huggingface_client(compat_server: Server) -> None:
    client = InferenceClient(compat_server.url)
    with pytest.raises(ValidationError, match="`top_p` must be"):
        client.text_generation("hello", top_p=2)
    with pytest.raises(GenerationError, match="as the prompt asked"):
        client.text_generation("hello RAISE@2")
    with pytest.raises(GenerationError, match="as the prompt asked"):
        list(client.text_generation("hello RAISE@2", stream=True))


# The launcher's environment variables


def test_check_shows_every_launcher_variable_as_a_source() -> None:
    environ = {
        "MODEL_ID": "org/model",
        "REVISION": "main",
        "NUM_SHARD": "2",
        "DTYPE": "float16",
        "QUANTIZE": "awq",
        "TRUST_REMOTE_CODE": "true",
        "MAX_CONCURRENT_REQUESTS": "7",
        "MAX_INPUT_TOKENS": "100",
        "MAX_INPUT_LENGTH": "50",
        "MAX_TOTAL_TOKENS": "200",
        "MAX_BATCH_PREFILL_TOKENS": "300",
        "MAX_BATCH_SIZE": "8",
        "MAX_BEST_OF": "3",
        "MAX_STOP_SEQUENCES": "6",
        "MAX_TOP_N_TOKENS": "9",
        "MAX_CLIENT_BATCH_SIZE": "10",
        "CUDA_MEMORY_FRACTION": "0.5",
        "PAYLOAD_LIMIT": "2000000",
        "CORS_ALLOW_ORIGIN": "https://a.example",
        "COMPUTE_TYPE": "1-nvidia-h200",
        "KV_CACHE_DTYPE": "fp8",
    }
    assert environ.keys() <= TGI.keys()
    loaded = load_properties(None, environ, registry())
    properties = loaded.properties
    assert (properties.max_input_tokens, properties.max_model_len, properties.tensor_parallel_degree) == (100, 200, 2)
    assert (properties.max_best_of, properties.max_stop_sequences, properties.max_top_n_tokens) == (3, 6, 9)
    assert (properties.dtype, properties.max_request_size, properties.compute_type) == (
        "fp16",
        2_000_000,
        "1-nvidia-h200",
    )
    sources = {setting.source for setting in loaded.explicit}  # as printed by `lmi check`
    assert sources == {f"environment variable {variable}" for variable in environ.keys() - {"MAX_INPUT_LENGTH"}}


@pytest.mark.parametrize(("sharded", "degree"), [("true", "max"), ("false", 1)])
def test_sharded(sharded: str, degree: str | int) -> None:
    assert load_properties(None, {"SHARDED": sharded}, registry()).properties.tensor_parallel_degree == degree
    assert (
        load_properties(None, {"SHARDED": sharded, "NUM_SHARD": "4"}, registry()).properties.tensor_parallel_degree == 4
    )


def test_limits_come_from_the_environment(limited_server: Server) -> None:
    info = requests.get(limited_server.url + "/info", timeout=60).json()
    assert [info[f"max_{name}"] for name in ("input_tokens", "total_tokens", "best_of", "concurrent_requests")] == [
        10,
        16,
        1,
        3,
    ]
    native = limited_server.invoke({"inputs": "01234567890"}, path="/generate")
    assert native.json()["error"] == "Input validation error: `inputs` must have less than 10 tokens. Given: 11"
    lmi = limited_server.invoke({"inputs": "01234567890"})
    assert says(lmi.json()["error"], "inputs: 10 11 16")
