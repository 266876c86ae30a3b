"""The unmodified client of Anthropic's API, on the small model and on the echo backend.

Its script in tests/clients runs once and prints its results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from client_scripts import CITY, CLIENTS_PYTHON, MAX_TOKENS, Outcomes, chat, full_server, runner, text_of, token_counts
from serving import Server

pytestmark = [pytest.mark.long, pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the echo backend. Prompts can trigger faults and contain tool calls in Hermes' format."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.tool_call_parser=hermes\n"
    server = Server(tmp_path_factory.mktemp("hermes") / "m", properties + "option.max_model_len=4096\n")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def expected(model_server_once: Server) -> dict[str, Any]:
    """The answer to the same chat over plain HTTP."""
    return chat(model_server_once)


@pytest.fixture(scope="module")
def stop(expected: dict[str, Any]) -> str:
    """A word in the middle of the model's answer."""
    return text_of(expected).split()[3]


@pytest.fixture(scope="module")
def client(
    model_server_once: Server, echo: Server, stop: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    with full_server(tmp_path_factory.mktemp("full") / "m") as full:
        run = runner(model=model_server_once.url, echo=echo.url, full=full.url, stop=stop)
        yield run("anthropic_client.py", CLIENTS_PYTHON)


def words(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"])


def test_messages(client: Outcomes, expected: dict[str, Any], stop: str) -> None:
    usage = token_counts(expected["usage"])
    for message in (client["message"], client["async_message"], client["helper"]["message"]):
        assert (words(message), message["stop_reason"]) == (text_of(expected), "max_tokens")
        told = message["usage"]
        assert told["input_tokens"] + told["cache_read_input_tokens"] == usage["prompt_tokens"]
        assert told["output_tokens"] == usage["completion_tokens"]
    for call in ("stream", "async_stream"):
        pieces = [event["delta"]["text"] for event in client[call] if event["type"] == "content_block_delta"]
        assert len(pieces) > MAX_TOKENS // 2
        assert "".join(pieces) == text_of(expected)
    assert words(client["stop"]) == text_of(expected).partition(stop)[0]
    assert (client["stop"]["stop_reason"], client["stop"]["stop_sequence"]) == ("stop_sequence", stop)
    assert client["count"]["input_tokens"] == usage["prompt_tokens"]
    assert client["request_id"]
    jsonschema.validate(client["parsed"], {"type": "object", "required": ["city", "rank"]})


def test_tools(client: Outcomes) -> None:
    for call in ("named", "any"):
        [use] = client[call]["content"]
        assert (use["type"], use["name"]) == ("tool_use", "rank_city")
        jsonschema.validate(use["input"], CITY)
    for message in (client["auto"], client["auto_helper"]["message"]):
        [use] = [block for block in message["content"] if block["type"] == "tool_use"]
        assert (use["input"], message["stop_reason"]) == ({"city": "Rome", "rank": 2}, "tool_use")
    assert {"input_json", "content_block_stop", "message_stop"} <= set(client["auto_helper"]["events"])
    assert "<tool_call>" in words(client["none"])
    assert client["count_tools"]["input_tokens"] > client["count"]["input_tokens"]
    assert "It is sunny." in str(client["conversation"]["content"])


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        ("refused", "BadRequestError", "stop_sequences"),
        ("unknown", "BadRequestError", "unheard_of"),
        ("not_found", "NotFoundError", "/v1/messages/batches"),
        ("full", "RateLimitError", "queue"),
    ],
)
def test_errors(client: Outcomes, call: str, kind: str, message: str) -> None:
    raised, said = client.error(call)
    assert (raised, message in said) == (f"anthropic.{kind}", True), said


def test_an_error_in_a_stream(client: Outcomes) -> None:
    raised, said = client.error("failed")
    assert (raised, "failed at token 2" in said) == ("anthropic.APIStatusError", True), said
