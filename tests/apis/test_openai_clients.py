"""Unmodified clients of OpenAI's API on the small model: openai, and lm-eval, whose scores are compared with transformers.

Each script in tests/clients runs once and prints its results.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from client_scripts import (
    CITY,
    CLIENTS_PYTHON,
    MAX_TOKENS,
    PROMPT,
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
)
from serving import Server

from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.timeout(600),
]  # the first test that uses a script waits for all of its calls


# Servers


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the echo backend. Prompts can trigger faults and contain tool calls in Hermes' format."""
    properties = (
        "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\n"
        "option.tool_call_parser=hermes\n"
    )
    server = Server(tmp_path_factory.mktemp("hermes") / "m", properties)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a full queue."""
    with full_server(tmp_path_factory.mktemp("full") / "m") as server:
        yield server


@pytest.fixture(scope="module")
def expected(model_server_once: Server) -> dict[str, Any]:
    """The answer to a plain HTTP request."""
    return chat(model_server_once)


@pytest.fixture(scope="module")
def stop(expected: dict[str, Any]) -> str:
    """A word in the middle of the model's answer."""
    return text_of(expected).split()[3]


@pytest.fixture(scope="module")
def run(model_server_once: Server, echo: Server, full: Server, stop: str, tokenizer_folder: Path) -> Run:
    return runner(model=model_server_once.url, echo=echo.url, full=full.url, stop=stop, tokenizer=str(tokenizer_folder))


def complete(model: Server, **parameters: Any) -> dict[str, Any]:
    """The answer of the text completions route to a plain HTTP request."""
    asked = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, **parameters}
    answer = model.invoke(asked, path="/v1/completions")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


# openai


@pytest.fixture(scope="module")
def openai(run: Run) -> Outcomes:
    return run("openai_client.py", CLIENTS_PYTHON)


def test_openai_chat(openai: Outcomes, model_server_once: Server, expected: dict[str, Any], stop: str) -> None:
    for call in ("chat", "async_chat"):
        assert text_of(openai[call]) == text_of(expected)
        assert token_counts(openai[call]["usage"]) == token_counts(expected["usage"])
    for call in ("stream", "async_stream", "usage"):
        assert len(openai[call]) > MAX_TOKENS // 2
        assert joined(openai[call]) == text_of(expected)
    assert token_counts(openai["usage"][-1]["usage"]) == token_counts(expected["usage"])
    assert text_of(openai["stop"]) == text_of(expected).partition(stop)[0]
    assert openai["stop"]["choices"][0]["finish_reason"] == "stop"
    assert [choice["message"]["content"] for choice in openai["choices"]["choices"]] == [text_of(expected)] * 3
    plain = chat(model_server_once, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    told = openai["logprobs"]["choices"][0]["logprobs"]["content"]
    assert [item["token"] for item in told] == [item["token"] for item in plain]
    assert [item["logprob"] for item in told] == pytest.approx([item["logprob"] for item in plain], abs=1e-3)
    assert [len(item["top_logprobs"]) for item in told] == [2] * len(plain)


def test_openai_formats(openai: Outcomes) -> None:
    jsonschema.validate(json.loads(text_of(openai["json"])), CITY)
    assert isinstance(json.loads(text_of(openai["json_object"])), dict)
    for call in ("parse", "async_parse", "parse_tool"):
        jsonschema.validate(openai[call], CITY)
    for call in ("parse_stream", "async_parse_stream"):
        jsonschema.validate(openai[call]["parsed"], CITY)
        assert {"chunk", "content.delta", "content.done"} <= set(openai[call]["events"])


@pytest.mark.parametrize("choice", ["named", "required"])
def test_openai_tools_that_must_be_called(openai: Outcomes, choice: str) -> None:
    assert_tool_call(openai[choice])
    assert_streamed_tool_call(openai[f"{choice}_stream"])


def test_openai_tools_that_may_be_called(openai: Outcomes) -> None:
    assert_tool_call(openai["auto"])
    assert openai["auto"]["choices"][0]["finish_reason"] == "tool_calls"
    assert_streamed_tool_call(openai["auto_stream"])
    assert openai["auto_stream"][-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "tool_calls.function.arguments.done" in openai["auto_helper"]["events"]
    assert json.loads(openai["auto_helper"]["function"]["arguments"]) == {"city": "Rome", "rank": 2}
    assert openai["none"]["choices"][0]["message"]["tool_calls"] is None
    assert "<tool_call>" in text_of(openai["none"])


def response_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_openai_responses(openai: Outcomes, expected: dict[str, Any]) -> None:
    assert openai["response_text"] == text_of(expected)
    usage = token_counts(expected["usage"])
    for call in ("response", "async_response"):
        response = openai[call]
        assert response_text(response) == text_of(expected)
        assert (response["status"], response["store"]) == ("incomplete", False)
        assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
    for call in ("response_stream", "async_response_stream"):
        deltas = [event["delta"] for event in openai[call] if event["type"] == "response.output_text.delta"]
        assert len(deltas) > MAX_TOKENS // 2
        assert "".join(deltas) == text_of(expected)
        assert response_text(openai[call][-1]["response"]) == text_of(expected)
    logprobs = openai["response_logprobs"]["output"][0]["content"][0]["logprobs"]
    assert [len(token["top_logprobs"]) for token in logprobs] == [2] * MAX_TOKENS
    assert openai["response_helper"]["events"][0] == "response.created"
    assert openai["response_helper"]["events"][-1] == "response.completed"
    assert "Hello" in response_text(openai["response_helper"]["response"])
    jsonschema.validate(openai["response_parse"], CITY)


def test_openai_responses_with_tools(openai: Outcomes) -> None:
    for call in ("response_named", "response_required"):
        [called] = openai[call]["output"]
        assert (called["type"], called["name"]) == ("function_call", "rank_city")
        jsonschema.validate(json.loads(called["arguments"]), CITY)
    told = openai["response_auto"]
    [called] = [item for item in told["response"]["output"] if item["type"] == "function_call"]
    assert json.loads(called["arguments"]) == {"city": "Rome", "rank": 2}
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(told["events"])
    assert "sunny" in openai["response_conversation"]


def test_openai_responses_are_not_stored(openai: Outcomes) -> None:
    for call in ("response_retrieved", "response_deleted", "response_cancelled"):
        kind, message = openai.error(call)
        assert (kind, "not stored" in message) == ("openai.NotFoundError", True)
    *_, error, failed = openai["response_failed"]
    assert (error["type"], "failed at token 2" in error["message"]) == ("error", True)
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")


def test_openai_completions(openai: Outcomes, model_server_once: Server) -> None:
    [plain] = complete(model_server_once, logprobs=2, echo=True)["choices"]
    text = plain["text"].removeprefix(PROMPT)
    assert text != plain["text"]
    for call in ("completion", "async_completion", "completion_logprobs"):
        [choice] = openai[call]["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert openai[call]["usage"]["completion_tokens"] == MAX_TOKENS
    for call in ("completion_stream", "async_completion_stream"):
        assert "".join(choice["text"] for chunk in openai[call] for choice in chunk["choices"]) == text
    first, second = openai["completion_prompts"]["choices"]
    assert (first["text"], second["index"]) == (text, 1)
    [echoed] = openai["completion_echo"]["choices"]
    assert echoed["text"] == plain["text"]
    logprobs = echoed["logprobs"]
    assert "".join(logprobs["tokens"]) == plain["text"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(plain["logprobs"]["token_logprobs"][1:], abs=1e-3)
    generated = openai["completion_logprobs"]["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs["token_logprobs"][-MAX_TOKENS:] == pytest.approx(generated, abs=1e-3)


def test_openai_models_and_headers(openai: Outcomes, model_server_once: Server, expected: dict[str, Any]) -> None:
    [model] = openai["models"]
    assert (model["id"], model["object"]) == (model_server_once.name, "model")
    assert openai["retrieved"] == model
    headers = openai["raw"]["headers"]
    assert headers["content-type"] == "application/json"
    assert headers["x-lmi-ignored-parameters"] == "unheard_of"
    assert openai["raw"]["id"] == headers["x-request-id"]
    assert openai["raw"]["parsed"]["id"] == f"chatcmpl-{headers['x-request-id']}"
    assert text_of(openai["raw"]["parsed"]) == text_of(expected)


@pytest.mark.parametrize(
    ("call", "kind", "status", "param", "code"),
    [
        ("invalid", "BadRequestError", 400, "top_p", None),
        ("invalid_type", "BadRequestError", 400, "max_tokens", None),
        ("invalid_stream", "BadRequestError", 400, "n", None),
        ("invalid_completion", "BadRequestError", 400, "suffix", None),
        ("stored", "BadRequestError", 400, "previous_response_id", None),
        ("too_long", "BadRequestError", 400, "messages", "context_length_exceeded"),
        ("failed", "InternalServerError", 500, None, None),
        ("overloaded", "RateLimitError", 429, None, None),
    ],
)
def test_openai_errors(
    openai: Outcomes, call: str, kind: str, status: int, param: str | None, code: str | None
) -> None:
    types = {400: "invalid_request_error", 429: "rate_limit_error", 500: "server_error"}
    assert openai[call] == {"kind": kind, "status": status, "type": types[status], "param": param, "code": code}


def test_openai_errors_without_an_answer(openai: Outcomes) -> None:
    assert (openai["unknown_path"]["kind"], openai["unknown_path"]["status"]) == ("NotFoundError", 404)
    kind, message = openai.error("failed_stream")
    assert (kind, "failed at token 2" in message) == ("openai.APIError", True)


# lm-eval, compared with transformers on the same prompts


class Reference:
    """The same model in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def loglikelihood(self, context: str, continuation: str) -> tuple[float, bool]:
        """The logprob of `continuation` after `context` or the start token, and whether greedy decoding would generate it."""
        import torch

        before = self._ids(context) or [self._tokenizer.bos_token_id]
        ids = before + self._ids(context + continuation)[len(self._ids(context)) :]
        with torch.inference_mode():
            logits = self._model(torch.tensor([ids])).logits[0]
        predicted = logits[len(before) - 1 : -1].log_softmax(-1)
        chosen = ids[len(before) :]
        return predicted[range(len(chosen)), chosen].sum().item(), predicted.argmax(-1).tolist() == chosen

    def generate(self, prompt: str | list[dict[str, str]], *, max_new_tokens: int, until: str) -> str:
        """The greedy answer to a text or a conversation, up to `until`."""
        import torch

        template = self._tokenizer.apply_chat_template
        text = prompt if isinstance(prompt, str) else template(prompt, tokenize=False, add_generation_prompt=True)
        ids = self._ids(text)
        said = self._model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=max_new_tokens)[0]
        answer: str = self._tokenizer.decode(said[len(ids) :], skip_special_tokens=True)
        return answer.partition(until)[0]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids


@pytest.fixture(scope="module")
def model_folder() -> Path:
    """The server's model folder."""
    cache_dir = default_cache_dir(os.environ)
    return resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)


@pytest.fixture(scope="module")
def tokenizer_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's tokenizer for transformers 4, which the clients use. It has a different class name than in version 5."""
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(model_folder / "tokenizer.json", folder)
    config = json.loads((model_folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Reference:
    return Reference(model_folder)


@pytest.fixture(scope="module")
def lm_eval(run: Run) -> Outcomes:
    return run("lm_eval_client.py", CLIENTS_PYTHON)


FACTS = [json.loads(line) for line in (SCRIPTS.parent / "data" / "lm_eval" / "facts.jsonl").read_text().splitlines()]


def test_lm_eval_loglikelihood(lm_eval: Outcomes, reference: Reference) -> None:
    """Of prompts that are lists of token ids, four in a request."""
    evaluated = lm_eval["facts_choice.token_ids"]
    right, greedy = 0, 0
    for fact, sample in zip(FACTS, evaluated["samples"], strict=True):
        assert [continuation for _, continuation in sample["arguments"]] == [f" {choice}" for choice in fact["choices"]]
        scores = [reference.loglikelihood(*arguments) for arguments in sample["arguments"]]
        for [[score, likeliest]], (expected_score, expected_likeliest) in zip(sample["responses"], scores, strict=True):
            assert score == pytest.approx(expected_score, abs=1e-3)
            assert likeliest == expected_likeliest
            greedy += likeliest
        right += fact["choices"][scores.index(max(scores))] == fact["answer"]
    assert evaluated["metrics"]["acc"] == right / len(FACTS)
    assert 0 < right < len(FACTS)
    assert greedy > 0


def test_lm_eval_loglikelihood_rolling(lm_eval: Outcomes, reference: Reference) -> None:
    """Of prompts that are texts, four requests at a time."""
    evaluated = lm_eval["facts_rolling.texts"]
    total, words = 0.0, 0
    for fact, sample in zip(FACTS, evaluated["samples"], strict=True):
        assert sample["arguments"] == [[fact["passage"]]]
        score, _ = reference.loglikelihood("", fact["passage"])
        assert sample["responses"] == [[pytest.approx(score, abs=1e-3)]]
        total, words = total + score, words + len(fact["passage"].split())
    assert evaluated["metrics"]["word_perplexity"] == pytest.approx(math.exp(-total / words), rel=1e-4)


@pytest.mark.parametrize("form", ["token_ids", "chat"])
def test_lm_eval_generate_until(lm_eval: Outcomes, reference: Reference, form: str) -> None:
    evaluated = lm_eval[f"facts_answer.{form}"]
    right = 0
    for fact, sample in zip(FACTS, evaluated["samples"], strict=True):
        [[prompt, asked]] = sample["arguments"]
        [until] = asked["until"]
        conversation = json.loads(prompt[0]) if form == "chat" else prompt
        expected = reference.generate(conversation, max_new_tokens=asked["max_gen_toks"], until=until)
        assert sample["responses"] == [[expected]]
        right += re.sub(r"\W", "", expected.lower()) == re.sub(r"\W", "", fact["answer"].lower())
    assert evaluated["metrics"]["exact_match"] == right / len(FACTS)
    assert right > 0
