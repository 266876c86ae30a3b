"""Unmodified third-party clients on real servers. Each script in tests/clients runs once and prints its results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
from client_scripts import (
    CITY,
    CLIENTS_PYTHON,
    ENGINE_PYTHON,
    MAX_TOKENS,
    PROMPT,
    REGEX,
    SCRIPTS,
    Outcomes,
    Run,
    assert_streamed_tool_call,
    assert_tool_call,
    chat,
    full_server,
    joined,
    runner,
    text_of,
    token_counts,
    without_nulls,
)
from serving import Server

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
]  # the first test that uses a script waits for all of its calls


# Servers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the small model with TGI's API on every route."""
    properties = "option.rolling_batch=scheduler\noption.dtype=fp32\noption.tgi_compat=true\n"
    server = Server(tmp_path_factory.mktemp("clients") / "tgi", properties, "--local-runtime")
    yield server.wait_ready(timeout=300)
    server.stop()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a full queue."""
    with full_server(tmp_path_factory.mktemp("full") / "m") as server:
        yield server


@pytest.fixture(scope="module")
def expected(model: Server) -> dict[str, Any]:
    """The answer to a plain HTTP request with `details`."""
    return generate(model)


@pytest.fixture(scope="module")
def expected_chat(model: Server) -> dict[str, Any]:
    """The answer to a chat over plain HTTP."""
    return chat(model)


@pytest.fixture(scope="module")
def stop(expected: dict[str, Any]) -> str:
    """A word of one token that occurs once, in the middle of the model's answer."""
    before = ""
    for token in expected["details"]["tokens"]:
        word: str = token["text"].strip()
        if len(before.split()) > 1 and len(word) > 2 and word not in before:
            return word
        before += token["text"]
    raise AssertionError(before)


@pytest.fixture(scope="module")
def run(model: Server, echo_server: Server, full: Server, stop: str) -> Run:
    return runner(model=model.url, echo=echo_server.url, full=full.url, stop=stop)


def generate(model: Server, inputs: str = PROMPT, **parameters: Any) -> dict[str, Any]:
    """The answer of TGI's own route. Sampling is greedy unless `parameters` say otherwise."""
    asked = {"max_new_tokens": MAX_TOKENS, "details": True, **parameters}
    answer = model.invoke({"inputs": inputs, "parameters": asked}, path="/generate")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


# text-generation


@pytest.fixture(scope="module")
def tgi(run: Run) -> Outcomes:
    return run("text_generation_client.py", CLIENTS_PYTHON)


@pytest.mark.model
@pytest.mark.parametrize("call", ["generate", "async_generate"])
def test_text_generation(tgi: Outcomes, expected: dict[str, Any], call: str) -> None:
    assert without_nulls(tgi[call]) == without_nulls(expected)


@pytest.mark.model
@pytest.mark.parametrize("call", ["generate_stream", "async_generate_stream"])
def test_text_generation_streams(tgi: Outcomes, expected: dict[str, Any], call: str) -> None:
    events = tgi[call]
    assert [event["token"] for event in events] == expected["details"]["tokens"]
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"]
    assert events[-1]["generated_text"] == expected["generated_text"]
    assert events[-1]["details"] == {"finish_reason": "length", "generated_tokens": MAX_TOKENS, "seed": None}


@pytest.mark.model
def test_text_generation_parameters(tgi: Outcomes, model: Server, expected: dict[str, Any], stop: str) -> None:
    assert tgi["defaults"]["details"]["generated_tokens"] == 20
    assert tgi["full_text"]["generated_text"] == PROMPT + expected["generated_text"]
    assert tgi["stop"]["generated_text"] == generate(model, stop=[stop])["generated_text"]
    assert tgi["stop"]["details"]["finish_reason"] == "stop_sequence"
    assert tgi["seed"]["generated_text"] == generate(model, do_sample=True, seed=7)["generated_text"]
    assert tgi["seed"]["details"]["seed"] == 7
    assert len(tgi["best_of"]["details"]["best_of_sequences"]) == 1
    assert all(len(event["top_tokens"]) == 2 for event in tgi["top_n_tokens"])
    assert "".join(token["text"] for token in tgi["prefill"]["details"]["prefill"]) == PROMPT


@pytest.mark.model
def test_text_generation_grammars(tgi: Outcomes, model: Server) -> None:
    jsonschema.validate(json.loads(tgi["json"]["generated_text"]), CITY)
    grammar = {"type": "regex", "value": REGEX}
    assert tgi["regex"]["generated_text"] == generate(model, grammar=grammar)["generated_text"]


@pytest.mark.model
@pytest.mark.parametrize("call", ["invalid", "invalid_stream", "async_invalid", "async_invalid_stream"])
def test_text_generation_raises_validation_errors(tgi: Outcomes, call: str) -> None:
    assert tgi.error(call) == (
        "text_generation.errors.ValidationError",
        "Input validation error: `stop` supports up to 4 stop sequences. Given: 5",
    )


@pytest.mark.model
@pytest.mark.parametrize("call", ["failed", "failed_stream", "async_failed_stream"])
def test_text_generation_raises_generation_errors(tgi: Outcomes, call: str) -> None:
    kind, message = tgi.error(call)
    assert kind == "text_generation.errors.GenerationError"
    assert message.startswith("Request failed during generation: ")


@pytest.mark.model
@pytest.mark.parametrize("call", ["overloaded", "overloaded_stream"])
def test_text_generation_raises_overload(tgi: Outcomes, call: str) -> None:
    assert tgi.error(call) == ("text_generation.errors.OverloadedError", "Model is overloaded")


@pytest.mark.model
def test_text_generation_chat(tgi: Outcomes, expected_chat: dict[str, Any]) -> None:
    """The client's chat stream fails on TGI too, because it expects `tool_calls` in every event and cannot parse `[DONE]`."""
    for call in ("chat", "async_chat"):
        assert text_of(tgi[call]) == text_of(expected_chat)
        assert token_counts(tgi[call]["usage"]) == token_counts(expected_chat["usage"])
    assert_tool_call(tgi["chat_tool"])


# huggingface_hub


@pytest.fixture(scope="module", params=[CLIENTS_PYTHON, ENGINE_PYTHON], ids=["0.x", "2.x"])
def hub(run: Run, request: pytest.FixtureRequest) -> Outcomes:
    """The version that `text-generation` allows, and the one that the engines install."""
    return run("hub_client.py", request.param)


@pytest.mark.model
def test_hub_text_generation(hub: Outcomes, expected: dict[str, Any]) -> None:
    text, tokens = expected["generated_text"], expected["details"]["tokens"]
    assert hub["text"] == hub["async_text"] == text
    assert without_nulls(hub["details"]) == without_nulls(expected)
    assert "".join(hub["stream"]) == "".join(hub["async_stream"]) == text
    assert [event["token"] for event in hub["stream_details"]] == tokens
    last = hub["stream_details"][-1]
    assert (last["generated_text"], last["details"]["generated_tokens"]) == (text, MAX_TOKENS)
    assert hub["full_text"] == PROMPT + text


@pytest.mark.model
def test_hub_parameters(hub: Outcomes, model: Server, stop: str) -> None:
    assert hub["stop"]["generated_text"] == generate(model, stop=[stop])["generated_text"]
    assert hub["stop"]["details"]["finish_reason"] == "stop_sequence"
    assert hub["seed"]["generated_text"] == generate(model, do_sample=True, seed=7)["generated_text"]
    assert len(hub["best_of"]["details"]["best_of_sequences"]) == 1
    assert [len(top) for top in hub["top_n_tokens"]["details"]["top_tokens"]] == [2] * MAX_TOKENS
    assert "".join(token["text"] for token in hub["prefill"]["details"]["prefill"]) == PROMPT


@pytest.mark.model
def test_hub_grammars(hub: Outcomes, model: Server) -> None:
    jsonschema.validate(json.loads(hub["json"]), CITY)
    assert hub["regex"] == generate(model, grammar={"type": "regex", "value": REGEX})["generated_text"]


@pytest.mark.model
def test_hub_info_and_health(hub: Outcomes, model: Server) -> None:
    assert hub["endpoint_info"] == requests.get(model.url + "/info", timeout=60).json()
    assert hub["health_check"] is True


@pytest.mark.model
@pytest.mark.parametrize("stream", ["", "_stream"])
def test_hub_errors(hub: Outcomes, stream: str) -> None:
    assert hub.error(f"invalid{stream}") == (
        "huggingface_hub.errors.ValidationError",
        "Input validation error: `stop` supports up to 4 stop sequences. Given: 5",
    )
    assert hub.error(f"failed{stream}")[0] == "huggingface_hub.errors.GenerationError"
    assert hub.error(f"overloaded{stream}") == ("huggingface_hub.errors.OverloadedError", "Model is overloaded")


@pytest.mark.model
def test_hub_chat(hub: Outcomes, model: Server, expected_chat: dict[str, Any]) -> None:
    for call in ("chat", "async_chat"):
        assert text_of(hub[call]) == text_of(expected_chat)
        assert token_counts(hub[call]["usage"]) == token_counts(expected_chat["usage"])
    for call in ("chat_stream", "async_chat_stream", "chat_usage"):
        assert joined(hub[call]) == text_of(expected_chat)
    assert token_counts(hub["chat_usage"][-1]["usage"]) == token_counts(expected_chat["usage"])
    logprobs = chat(model, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    told = hub["chat_logprobs"]["choices"][0]["logprobs"]["content"]
    assert [(item["token"], item["logprob"]) for item in told] == [
        (item["token"], item["logprob"]) for item in logprobs
    ]


@pytest.mark.model
def test_hub_chat_formats(hub: Outcomes) -> None:
    jsonschema.validate(json.loads(text_of(hub["chat_json"])), CITY)
    assert_tool_call(hub["chat_tool"])
    assert_streamed_tool_call(hub["chat_tool_stream"])


# LangChain


@pytest.fixture(scope="module")
def langchain(run: Run) -> Outcomes:
    return run("langchain_client.py", CLIENTS_PYTHON)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["endpoint", "text_gen_inference"])
def test_langchain(langchain: Outcomes, model: Server, expected: dict[str, Any], stop: str, kind: str) -> None:
    text = expected["generated_text"]
    for call in ("invoke", "ainvoke", "streaming"):
        assert langchain[f"{kind}.{call}"] == text, call
    for call in ("stream", "astream"):
        assert len(langchain[f"{kind}.{call}"]) > 1
        assert "".join(langchain[f"{kind}.{call}"]) == text, call
    assert langchain[f"{kind}.batch"] == [text] * 3
    before = generate(model, stop=[stop])["generated_text"].removesuffix(stop)
    assert langchain[f"{kind}.stop"] == before
    assert "".join(langchain[f"{kind}.stop_stream"]) == before
    sampled = generate(model, temperature=0.8, top_p=0.95, typical_p=0.95, seed=7)
    assert langchain[f"{kind}.sampled"] == sampled["generated_text"]


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "module"), [("endpoint", "huggingface_hub.errors"), ("text_gen_inference", "text_generation.errors")]
)
def test_langchain_errors(langchain: Outcomes, kind: str, module: str) -> None:
    assert langchain.error(f"{kind}.invalid")[0] == f"{module}.ValidationError"
    assert langchain.error(f"{kind}.failed_stream")[0] == f"{module}.GenerationError"
    assert langchain.error(f"{kind}.overloaded")[0] == f"{module}.OverloadedError"


@pytest.mark.model
@pytest.mark.parametrize("kind", ["chat_hugging_face", "chat_openai"])
def test_langchain_chat(langchain: Outcomes, expected_chat: dict[str, Any], kind: str) -> None:
    for call in ("invoke", "ainvoke"):
        assert langchain[f"{kind}.{call}"]["content"] == text_of(expected_chat)
    for call in ("stream", "astream"):
        assert "".join(chunk["content"] for chunk in langchain[f"{kind}.{call}"]) == text_of(expected_chat)
    [tool_call] = langchain[f"{kind}.tool"]["tool_calls"]
    assert tool_call["name"] == "rank_city"
    jsonschema.validate(tool_call["args"], CITY)
    jsonschema.validate(langchain[f"{kind}.structured"], CITY)


# LiteLLM


@pytest.fixture(scope="module")
def litellm(run: Run) -> Outcomes:
    return run("litellm_client.py", CLIENTS_PYTHON)


@pytest.mark.model
def test_litellm_sagemaker(litellm: Outcomes, expected: dict[str, Any]) -> None:
    for call in ("completion", "acompletion"):
        assert litellm[f"sagemaker.{call}"]["choices"][0]["message"]["content"] == expected["generated_text"]
    for call in ("stream", "astream"):
        # LiteLLM drops the space at the beginning of a stream.
        assert joined(litellm[f"sagemaker.{call}"]) == expected["generated_text"].lstrip()


@pytest.mark.model
@pytest.mark.parametrize("provider", ["huggingface", "openai", "sagemaker_chat"])
def test_litellm_chat(litellm: Outcomes, expected_chat: dict[str, Any], provider: str) -> None:
    for call in ("completion", "acompletion"):
        assert text_of(litellm[f"{provider}.{call}"]) == text_of(expected_chat)


@pytest.mark.model
@pytest.mark.parametrize(
    "provider",
    [
        "huggingface",
        "openai",
        "sagemaker_chat",
    ],
)
def test_litellm_chat_streams(litellm: Outcomes, expected_chat: dict[str, Any], provider: str) -> None:
    for call in ("stream", "astream"):
        assert joined(litellm[f"{provider}.{call}"]) == text_of(expected_chat)


@pytest.mark.model
def test_litellm_errors(litellm: Outcomes) -> None:
    assert litellm.error("invalid")[0] == "litellm.exceptions.BadRequestError"
    assert litellm.error("failed")[0] == "litellm.exceptions.APIError"
    assert litellm.error("overloaded")[0] == "litellm.exceptions.RateLimitError"


# aleph-alpha-client


@pytest.fixture(scope="module")
def aleph_alpha(run: Run) -> Outcomes:
    return run("aleph_alpha.py", CLIENTS_PYTHON)


@pytest.mark.model
def test_aleph_alpha(aleph_alpha: Outcomes, echo_server: Server) -> None:
    expected = chat(echo_server, max_tokens=None)
    message = {"role": "assistant", "content": text_of(expected), "tool_calls": None}
    assert aleph_alpha["chat"] == {"finish_reason": "stop", "message": message}
    *chunks, reason = aleph_alpha["stream"]
    assert ("".join(chunk["content"] for chunk in chunks), reason) == (text_of(expected), "stop")
    assert aleph_alpha["usage"][-1] == expected["usage"]
    assert aleph_alpha["bounded"]["finish_reason"] == "length"
    assert len(aleph_alpha["bounded"]["message"]["content"]) == 3
    jsonschema.validate(json.loads(aleph_alpha["json"]["message"]["content"]), CITY)
    [called] = aleph_alpha["tool"]["message"]["tool_calls"]
    streamed, _ = (item for item in aleph_alpha["tool_stream"] if "content" not in item)
    assert called["function"] == streamed["function"]
    jsonschema.validate(json.loads(called["function"]["arguments"]), CITY)


@pytest.mark.model
def test_aleph_alpha_completions(aleph_alpha: Outcomes, expected: dict[str, Any]) -> None:
    text, tokens = expected["generated_text"], expected["details"]["tokens"]
    counts = {"num_tokens_prompt_total": 5, "num_tokens_generated": MAX_TOKENS}
    plain = aleph_alpha["complete"]
    assert plain["completions"][0] | {"finish_reason": None} == {
        "completion": text,
        **dict.fromkeys(["finish_reason", "log_probs", "completion_tokens", "raw_completion"]),
    }
    assert plain["completions"][0]["finish_reason"] == "maximum_tokens"
    assert plain.items() >= counts.items()
    details = aleph_alpha["complete_details"]["completions"][0]
    assert details["completion_tokens"] == [token["text"] for token in tokens]
    assert details["raw_completion"] == details["completion"] == text
    for log_probs, token in zip(details["log_probs"], tokens, strict=True):
        assert log_probs[token["text"]] == pytest.approx(token["logprob"], abs=1e-4) == max(log_probs.values())
        assert len(log_probs) == 2
    assert aleph_alpha["complete_async"] == aleph_alpha["complete_details"]
    *chunks, summary, end = aleph_alpha["complete_stream"]
    for name in ("log_probs", "completion_tokens"):
        assert [item for chunk in chunks for item in chunk[name]] == details[name]
    assert "".join(chunk["completion"] for chunk in chunks) == text
    assert summary == {"index": 0, "model_version": plain["model_version"], "finish_reason": "maximum_tokens"}
    assert end == {"optimized_prompt": None, **counts}


@pytest.mark.model
def test_aleph_alpha_completions_with_stop_sequences(aleph_alpha: Outcomes, model: Server, stop: str) -> None:
    text = generate(model, stop=[stop])["generated_text"].removesuffix(stop)
    [completion] = aleph_alpha["complete_stop"]["completions"]
    assert (completion["completion"], completion["finish_reason"]) == (text, "stop_sequence_reached")
    *chunks, summary, _ = aleph_alpha["complete_stop_stream"]
    assert "".join(chunk["completion"] for chunk in chunks) == text
    assert summary["finish_reason"] == "stop_sequence_reached"


@pytest.mark.model
def test_aleph_alpha_prompts(aleph_alpha: Outcomes) -> None:
    [echo] = aleph_alpha["complete_echo"]["completions"]
    assert echo["completion"] == "".join(echo["completion_tokens"]) == PROMPT
    assert echo["log_probs"][0] == {}
    assert all(logprob < 0 for log_probs in echo["log_probs"][1:] for logprob in log_probs.values())
    assert aleph_alpha["complete_echo"]["num_tokens_generated"] == 0
    [completion] = aleph_alpha["complete_token_ids"]["completions"]
    assert (completion["completion"], completion["finish_reason"]) == ("hi", "end_of_text")


@pytest.mark.model
def test_aleph_alpha_errors(aleph_alpha: Outcomes) -> None:
    assert aleph_alpha.error("invalid")[0] == "builtins.ValueError"
    assert aleph_alpha.error("overloaded")[0].endswith("BusyError")
    for call, field in (("complete_controls", "prompt[0].controls"), ("complete_image", "prompt[0].type")):
        assert aleph_alpha.error(call)[0] == "builtins.ValueError"
        assert field in aleph_alpha.error(call)[1]
    assert aleph_alpha.error("complete_failed_stream")[0] == "builtins.KeyError"  # the client requires an event type
    assert aleph_alpha.error("complete_overloaded")[0].endswith("BusyError")


# The documentation of clients


def test_documented_versions_are_the_tested_ones() -> None:
    lines = (SCRIPTS / "requirements.txt").read_text().replace("_", "-").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    page = (SCRIPTS.parent.parent / "docs" / "tgi.md").read_text()
    documented = re.findall(r"^\| ([\w-]+) \| (\d[\d.]+)", page, re.MULTILINE)
    assert len(documented) > 5
    assert {name: pinned[name.replace("_", "-")] for name, _ in documented} == dict(documented)
