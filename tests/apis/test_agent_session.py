"""A session of Claude Code 2.1.197, an agent that speaks Anthropic's API, with this server: its requests, sent again.

It was recorded with the echo engine, whose answer calls a tool because the prompt does. Ids, paths, the texts of answers
and descriptions of tools are redacted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from paths import RECORDINGS
from server_sent_events import event_data
from serving import Server

SESSION: list[dict[str, Any]] = json.loads((RECORDINGS / "anthropic" / "claude_code.json").read_text())
ASKED, TOLD = (exchange for exchange in SESSION if exchange["method"] == "POST")
"""The request that is answered with a call of a tool, and the one that has its result."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = "option.rolling_batch=echo\noption.tool_call_parser=hermes\noption.max_model_len=16384\n"
    server = Server(tmp_path_factory.mktemp("agent") / "m", properties)
    yield server.wait_ready()
    server.stop()


def send(server: Server, exchange: dict[str, Any]) -> requests.Response:
    return requests.request(
        exchange["method"],
        server.url + exchange["path"],
        headers=exchange.get("headers"),
        json=exchange.get("body"),
        timeout=60,
    )


def test_the_agent_looks_whether_the_server_is_there(server: Server) -> None:
    [probe] = [exchange for exchange in SESSION if exchange["method"] != "POST"]
    assert (probe["method"], probe["path"], send(server, probe).status_code) == ("HEAD", "/", 200)


def test_the_call_of_a_tool_is_the_one_that_the_agent_has_made(server: Server) -> None:
    answer = send(server, ASKED)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert answer.headers["x-lmi-ignored-parameters"] == "context_management"
    events = [json.loads(data) for data in event_data(answer.text)]
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    [place] = [place for place, block in enumerate(started) if block["type"] == "tool_use"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta" and event["index"] == place]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    [made] = [block for block in TOLD["body"]["messages"][1]["content"] if block["type"] == "tool_use"]
    given = json.loads("".join(delta["partial_json"] for delta in deltas))
    assert (started[place]["name"], given) == (made["name"], made["input"])
    [end] = [event for event in events if event["type"] == "message_delta"]
    assert (end["delta"]["stop_reason"], events[-1]["type"]) == ("tool_use", "message_stop")


def test_the_result_of_the_tool_reaches_the_model(server: Server) -> None:
    answer = send(server, TOLD)
    assert answer.status_code == 200, answer.text
    events = [json.loads(data) for data in event_data(answer.text)]
    texts = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    assert "hello from a file" in "".join(texts)


def test_its_tokens_are_counted(server: Server) -> None:
    """Agents of this kind ask for it before they shorten a conversation; this session had no need to."""
    body = {name: TOLD["body"][name] for name in ("model", "messages", "system", "tools")}
    counted = send(server, TOLD | {"path": "/v1/messages/count_tokens?beta=true", "body": body})
    streamed = event_data(send(server, TOLD).text)
    assert counted.json()["input_tokens"] == json.loads(streamed[0])["message"]["usage"]["input_tokens"]
