"""OpenAI's `functions` and `function_call`, the older form of tools: requests, messages and answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from capabilities import facts
from openapi_documents import document
from prompts import rendered
from server_sent_events import json_chunks

from formatters.openai.chat import ChatFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect
from lmi_handlers.apis.openai.messages import CALL_ID
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TextDelta
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.serving.parsed import Parsed

USER = {"role": "user", "content": "Hi"}
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
TIME = {"name": "get_time"}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"place": "Rome"}}</tool_call>'


def parse(**fields: Any) -> Parsed:
    dialect = ChatDialect(
        lambda: facts(chat_template="{{ tools }}"), budget=Budget.of(ServingProperties()), tool_call_parser="hermes"
    )
    body = {"messages": [USER], **fields}
    return dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r"))


def chat_of(parsed: Parsed) -> ChatPrompt:
    content = parsed.request.prompts[0].content
    assert isinstance(content, ChatPrompt)
    return content


def answered(text: str, **fields: Any) -> str:
    """The answer to a request with these fields, if the model writes `text`."""
    parsed = parse(**fields)
    formatter = parsed.formatter(parsed.request, rendered(1, "Hi"))
    assert isinstance(formatter, ChatFormatter)
    middle = len(text) // 2
    pieces = [
        formatter.feed(TextDelta(index=0, text=text[:middle])),
        formatter.feed(TextDelta(index=0, text=text[middle:], finish_reason=FinishReason.EOS_TOKEN)),
        formatter.finish(),
    ]
    return b"".join(pieces).decode()


def test_functions_are_tools() -> None:
    functions = parse(functions=[WEATHER, TIME])
    tools = parse(tools=[{"type": "function", "function": function} for function in (WEATHER, TIME)])
    assert chat_of(functions) == chat_of(tools)
    assert functions.request.sampling_params == tools.request.sampling_params


@pytest.mark.parametrize(("choice", "named"), [("none", None), ("auto", None), ({"name": "get_weather"}, WEATHER)])
def test_function_call_is_the_choice(choice: Any, named: Any) -> None:
    parsed = parse(functions=[WEATHER, TIME], function_call=choice)
    wanted = parsed.request.sampling_params.structured_outputs
    assert (chat_of(parsed).tools is None) == (choice == "none")
    assert (wanted and json.loads(wanted.json or "")) == (named and named["parameters"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"functions": [TIME], "tools": []}, "functions"),
        ({"functions": [TIME], "tool_choice": "auto"}, "functions"),
        ({"functions": [TIME, TIME]}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [{}]}, "functions[0]"),
        ({"functions": {}}, "functions"),
        ({"functions": [{"name": "f", "parameters": 5}]}, "functions[0].parameters"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": [], "function_call": {"name": "get_time"}}, "function_call"),
        ({"functions": [TIME], "function_call": {"name": "other"}}, "function_call"),
        ({"functions": [TIME], "function_call": {}}, "function_call"),
        ({"functions": [TIME], "function_call": 5}, "function_call"),
        ({"messages": [{"role": "assistant", "function_call": "f"}]}, "messages[0].function_call"),
    ],
)
def test_bad_requests(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(**fields)
    assert raised.value.field == field


def test_a_schema_that_is_nested_too_deeply_is_named() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"anyOf": [schema]}
    with pytest.raises(InvalidRequest, match="too deep") as raised:
        parse(functions=[TIME, WEATHER | {"parameters": schema}], function_call="required")
    assert raised.value.field == "functions[1]"


def test_templates_see_tool_calls_and_their_results() -> None:
    call = {"name": "get_weather", "arguments": '{"place": "Rome"}'}
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "get_weather", "content": "hot"},
        {"role": "assistant", "content": "Hot.", "function_call": None, "tool_calls": None},
        {"role": "assistant", "content": None, "function_call": {"name": "get_time", "arguments": "?"}},
    ]
    chat = chat_of(parse(messages=messages))
    assert not chat.continue_final_message
    assert chat.messages[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": CALL_ID,
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"place": "Rome"}},
                }
            ],
        },
        {"role": "tool", "name": "get_weather", "content": "hot", "tool_call_id": CALL_ID},
        {"role": "assistant", "content": "Hot."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": {"name": "get_time", "arguments": {}}}],
        },
    ]
    assert len(CALL_ID) == 9  # letters and digits, as Mistral's templates require
    assert CALL_ID.isalnum()


def test_a_document_has_one_call() -> None:
    answer = json.loads(answered(f"So.{CALL}{CALL}", functions=[WEATHER]))
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "So.",
        "function_call": {"name": "get_weather", "arguments": '{"place": "Rome"}'},
    }
    assert answer["choices"][0]["finish_reason"] == "function_call"
    components = document()["components"]
    jsonschema.validate(answer, {"$ref": "#/components/schemas/ChatCompletion", "components": components})


def test_a_stream_has_one_call() -> None:
    chunks = json_chunks(answered(f"So.{CALL}{CALL}", functions=[WEATHER], stream=True))
    components = document()["components"]
    for chunk in chunks:
        jsonschema.validate(chunk, {"$ref": "#/components/schemas/ChatCompletionChunk", "components": components})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert [call.get("name") for call in calls] == ["get_weather"] + [None] * (len(calls) - 1)
    assert "".join(call["arguments"] for call in calls) == '{"place": "Rome"}'
    assert all("tool_calls" not in delta for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "So."
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


@pytest.mark.parametrize(("parallel", "count"), [(False, 1), (None, 2), (True, 2)])
def test_tools_without_parallel_calls(parallel: bool | None, count: int) -> None:
    """The model may write more calls than one, if no grammar keeps it from that. They are left out."""
    fields = {"tools": [{"type": "function", "function": WEATHER}], "parallel_tool_calls": parallel}
    [whole] = json.loads(answered(f"So.{CALL}{CALL}", **fields))["choices"]
    chunks = json_chunks(answered(f"So.{CALL}{CALL}", stream=True, **fields))
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert len(whole["message"]["tool_calls"]) == count
    assert {call["index"] for call in calls} == {*range(count)}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"place": "Rome"}' * count
    assert whole["message"]["content"] == "So."
    assert (whole["finish_reason"], chunks[-1]["choices"][0]["finish_reason"]) == ("tool_calls", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_named_calls(stream: bool) -> None:
    assert '"finish_reason":"stop"' in answered("So.", functions=[WEATHER], stream=stream)
    named = {"functions": [WEATHER], "function_call": {"name": "get_weather"}, "stream": stream}
    text = answered('{"place": "Rome"}', **named)
    assert '"name":"get_weather"' in text
    assert '"finish_reason":"function_call"' in text
