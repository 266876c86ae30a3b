"""Aleph Alpha's chat over HTTP, on the echo backend, whose chat template renders "user: hi\\nassistant: "."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from capabilities import facts
from server_sent_events import json_chunks
from serving import Server

from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import DeadlineExceeded, EngineDead, EngineNotReady, InvalidRequest, LMIError, QueueFull

BUDGET = Budget.of(ServingProperties())

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yes"}
SYSTEM = {"role": "system", "content": "Be brief."}


def post(server: Server, **body: Any) -> requests.Response:
    return server.invoke({"model": "m", "messages": [USER], **body}, path="/chat/completions")


def test_document(echo_server: Server) -> None:
    answer = post(echo_server, maximum_tokens=4, logprobs=True, top_logprobs=1).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "user"}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["content"][0] == {
        "token": "u",
        "logprob": -0.5,
        "bytes": [117],
        "top_logprobs": [{"token": "u", "logprob": -0.5, "bytes": [117]}],
    }
    assert answer["system_fingerprint"].startswith("lmi-handlers-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "m")


def test_stream(echo_server: Server) -> None:
    answer = post(echo_server, max_tokens=4, stream=True, logprobs=True, stream_options={"include_usage": True})
    chunks = json_chunks(answer.text)
    first, *middle, last, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(
        "role" not in chunk["choices"][0]["delta"] and chunk["choices"][0]["delta"]["content"] for chunk in middle
    )
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["logprobs"]) == ("length", None)
    assert [chunk["system_fingerprint"] is None for chunk in (first, *middle)] == [True] * (len(chunks) - 2)
    assert last["system_fingerprint"] is not None
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "messages",
    [[USER], [SYSTEM, USER], [USER, ASSISTANT, USER], [SYSTEM, USER, ASSISTANT, USER], [USER | {"name": "Ann"}]],
)
def test_order_of_the_messages(echo_server: Server, messages: list[dict[str, str]]) -> None:
    assert post(echo_server, messages=messages).status_code == 200


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [SYSTEM]}, "messages"),
        ({"messages": [ASSISTANT]}, "messages"),
        ({"messages": [USER, USER]}, "messages"),
        ({"messages": [USER, ASSISTANT]}, "messages"),
        ({"messages": [USER, SYSTEM]}, "messages"),
        ({"messages": [SYSTEM, SYSTEM, USER]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"model": None}, "model"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
    ],
)
def test_rejected(echo_server: Server, given: dict[str, Any], cause: str) -> None:
    answer = post(echo_server, **given)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{cause}: ")
    assert answer.json()["code"] in ("INVALID_REQUEST", "UNSUPPORTED_PARAMETER")


def test_ignored(echo_server: Server) -> None:
    answer = post(echo_server, seed=1, user="u", service_tier="x", steering_concepts=[], max_tokens=4)
    assert answer.json()["choices"][0]["message"]["content"] == "user"
    assert answer.headers["x-lmi-ignored-parameters"] == "seed, user, service_tier, steering_concepts"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no"), 400, "INVALID_REQUEST"),
        (QueueFull("no"), 503, "QUEUE_FULL"),
        (EngineNotReady("no"), 503, "BUSY"),
        (DeadlineExceeded("no"), 408, "TASK_TIMEOUT"),
        (EngineDead("no"), 500, "INTERNAL"),
    ],
)
def test_errors(error: LMIError, status: int, code: str) -> None:
    answer = AlephAlphaDialect(facts, budget=BUDGET).error(error)
    assert (answer.status, json.loads(answer.body)) == (status, {"error": "no", "code": code})
