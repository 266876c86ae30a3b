"""vLLM's bodies of `/tokenize`, and its `/detokenize`: the text of token ids."""

from __future__ import annotations

from typing import Any

import pytest
from facts import says
from serving import Server


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([], ""),
        ([72, 105], "Hi"),
        ([195, 169, 256, 97], "é<|endoftext|>a"),
        ([97] * 65_536, "a" * 65_536),
    ],
    ids=["none", "some", "special", "many"],
)
def test_the_text_of_tokens(echo_server: Server, tokens: list[int], text: str) -> None:
    answer = echo_server.invoke({"tokens": tokens, "model": "any"}, path="/detokenize")
    assert (answer.status_code, answer.text) == (200, f'{{"prompt":"{text}"}}')


def test_tokenize_and_back(model_server_once: Server) -> None:
    text = "Grüße, 日本 🙂!"
    spans = model_server_once.invoke({"inputs": text}, path="/tokenize").json()
    answer = model_server_once.invoke({"tokens": [span["id"] for span in spans]}, path="/detokenize")
    assert answer.json() == {"prompt": text}


@pytest.mark.parametrize(
    "tokens",
    ["Hi", [-1], [1, 1.5], [True], [257], [2**64], [97] * 65_537, None],
    ids=["text", "negative", "fraction", "boolean", "unknown", "huge", "many", "null"],
)
def test_wrong_tokens_are_refused(echo_server: Server, tokens: Any) -> None:
    answer = echo_server.invoke({"tokens": tokens}, path="/detokenize")
    assert 400 <= answer.status_code < 500
    assert "tokens" in answer.json()["error"]["message"] + (answer.json()["error"]["param"] or "")


@pytest.mark.parametrize("field", ["inputs", "prompt"])
def test_one_token_too_many(echo_server: Server, field: str) -> None:
    """The length is only known once the text has been encoded."""
    assert echo_server.invoke({field: "a" * 65_536}, path="/tokenize").status_code == 200
    assert echo_server.invoke({field: "a" * 65_537}, path="/tokenize").status_code == 422


def test_vllms_prompt(echo_server: Server) -> None:
    answer = echo_server.invoke({"prompt": "Hi", "model": "any"}, path="/tokenize")
    count = answer.json()["max_model_len"]
    assert answer.text == f'{{"count":2,"max_model_len":{count},"tokens":[72,105],"token_strs":null}}'


def test_vllms_conversation(model_server_once: Server) -> None:
    messages = [{"role": "user", "content": "Grüße"}]
    asked = {"messages": messages, "return_token_strs": True}
    answer = model_server_once.invoke(asked, path="/tokenize").json()
    spans = model_server_once.invoke({"messages": messages}, path="/chat_tokenize").json()["tokenize_response"]
    assert answer["tokens"] == [span["id"] for span in spans]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["token_strs"][0] == "<|im_start|>"
    without = model_server_once.invoke(asked | {"add_generation_prompt": False}, path="/tokenize").json()
    assert without["tokens"] == answer["tokens"][: without["count"]]
    assert without["count"] < answer["count"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": 1}, "prompt"),
        ({"prompt": "a" * 65_537}, "prompt: 65536 tokens"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "x"}, "chat_template"),
        (
            {
                "messages": [{"role": "assistant", "content": "Hi"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
    ],
)
def test_wrong_bodies_of_vllm_are_refused(echo_server: Server, body: dict[str, Any], words: str) -> None:
    answer = echo_server.invoke(body, path="/tokenize")
    assert 400 <= answer.status_code < 500
    assert says(answer.json()["error"], words)
