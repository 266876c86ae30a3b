"""vLLM's `/detokenize`: the text of token ids."""

from __future__ import annotations

from typing import Any

import pytest
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


def test_tokenize_and_back(model_server: Server) -> None:
    text = "Grüße, 日本 🙂!"
    spans = model_server.invoke({"inputs": text}, path="/tokenize").json()
    answer = model_server.invoke({"tokens": [span["id"] for span in spans]}, path="/detokenize")
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
