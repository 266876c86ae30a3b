"""OpenAI's responses: the bytes that the formatters write, how bodies are parsed, and answers over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests
from capabilities import facts
from formatting import written
from prompts import rendered
from server_sent_events import json_events
from serving import Server, StartServer

from formatters.openai.responses import ResponseFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.responses_dialect import ResponseDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull, RequestFailed
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed

BUDGET = Budget.of(ServingProperties())
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def parse(body: dict[str, Any], **options: Any) -> Parsed:
    template, adapters = "{{ tools }}<tool_call>", ("loud",)
    dialect = ResponseDialect(lambda: facts("served", template, adapters=adapters), budget=BUDGET, **options)
    return dialect.parse(Payload(data=json.dumps({"input": "hi", **body}, indent=1).encode(), request_id="r"))


def formatter(body: dict[str, Any], **options: Any) -> ResponseFormatter:
    parsed = parse(body, **options)
    made = parsed.formatter(parsed.request, rendered(10, "Say: "))
    assert isinstance(made, ResponseFormatter)
    return made


def deltas(*pieces: str, reason: FinishReason = FinishReason.EOS_TOKEN) -> list[TextDelta]:
    """One token per piece, then the end of the sequence."""
    tokens = [Token(place, piece, -0.5, data=piece.encode()) for place, piece in enumerate(pieces)]
    end = Token(99, "</s>", -0.25, special=True, data=b"</s>")
    return [TextDelta(tokens=(token,), text=token.text) for token in tokens] + [
        TextDelta(tokens=(end,), text="", finish_reason=reason)
    ]


def answer(*pieces: str, body: dict[str, Any], reason: FinishReason = FinishReason.EOS_TOKEN, **options: Any) -> Any:
    """The response, which is the same whole and streamed but for the ids of calls. Checks the events."""
    parts = deltas(*pieces, reason=reason)
    whole = json.loads(written(formatter(body, **options), *parts))
    streamed = replayed(json_events(written(formatter(body | {"stream": True}, **options), *parts)))
    assert without_ids(streamed) == without_ids(whole)
    return whole


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    output = [item | ({"call_id": ""} if "call_id" in item else {}) for item in response["output"]]
    return response | {"output": output, "created_at": 0, "completed_at": 0}


def replayed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last event's response. Checks that the others add up to it, as clients rely on."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, in_progress, *between, last = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    response: dict[str, Any] = last["response"]
    assert last["type"] == f"response.{response['status']}"
    items: list[Any] = []
    for event in between:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append({**event["item"], "text": "", "logprobs": []})
            assert event["item"]["status"] == "in_progress"
        item = items[-1]
        assert event["output_index"] == len(items) - 1
        assert event.get("item_id", item["id"]) == item["id"]
        if kind.endswith(".delta"):
            item["text"] += event["delta"]
            item["logprobs"] += event.get("logprobs", [])
        elif kind == "output_item.done":
            items[-1] = event["item"]
        elif kind == "content_part.done":
            assert (event["part"]["text"], event["part"].get("logprobs", [])) == (item["text"], item["logprobs"])
        elif kind.endswith("text.done"):
            assert (event["text"], event.get("logprobs", [])) == (item["text"], item["logprobs"])
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["text"], item["name"])
        else:
            assert kind in ("output_item.added", "content_part.added")
    assert items == response["output"]
    return response


# Bytes

TAIL = (
    '"instructions":null,"metadata":{},"parallel_tool_calls":true,"reasoning":{"effort":null,"summary":null},'
    '"temperature":1.0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"max_output_tokens":null,'
    '"max_tool_calls":null,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_logprobs":0,'
    '"truncation":"disabled","user":null,"safety_identifier":null,"prompt_cache_key":null,"background":false,'
    '"previous_response_id":null,"service_tier":"default","store":false}'
)
BEGUN = (
    '{"id":"resp_r","object":"response","created_at":7,"completed_at":null,"status":"in_progress","error":null,'
    f'"incomplete_details":null,"model":"served","output":[],"usage":null,{TAIL}'
)
PART = '{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}'
ITEM = f'{{"type":"message","id":"msg_r_0","status":"completed","role":"assistant","content":[{PART}]}}'
WHOLE = (
    '{"id":"resp_r","object":"response","created_at":7,"completed_at":7,"status":"completed","error":null,'
    f'"incomplete_details":null,"model":"served","output":[{ITEM}],'
    '"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":3,'
    f'"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":13}},{TAIL}'
)


def timeless(text: str) -> str:
    return re.sub(r'"(created|completed)_at":\d+', r'"\1_at":7', text)


def test_document() -> None:
    made = formatter({})
    made.cached_tokens = 4
    assert timeless(written(made, *deltas("Hel", "lo"))) == WHOLE


def test_stream() -> None:
    made = formatter({"stream": True})
    made.cached_tokens = 4
    place = '"item_id":"msg_r_0","output_index":0,"content_index":0'
    events = (
        ("response.created", f'"response":{BEGUN}'),
        ("response.in_progress", f'"response":{BEGUN}'),
        (
            "response.output_item.added",
            '"output_index":0,"item":{"type":"message","id":"msg_r_0","status":"in_progress","role":"assistant",'
            '"content":[]}',
        ),
        ("response.content_part.added", f'{place},"part":{PART.replace("Hello", "")}'),
        ("response.output_text.delta", f'{place},"delta":"Hel","logprobs":[]'),
        ("response.output_text.delta", f'{place},"delta":"lo","logprobs":[]'),
        ("response.output_text.done", f'{place},"text":"Hello","logprobs":[]'),
        ("response.content_part.done", f'{place},"part":{PART}'),
        ("response.output_item.done", f'"output_index":0,"item":{ITEM}'),
        ("response.completed", f'"response":{WHOLE}'),
    )
    assert timeless(written(made, *deltas("Hel", "lo"))) == "".join(
        f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number},{fields}}}\n\n'
        for number, (name, fields) in enumerate(events)
    )


def test_error_in_a_stream() -> None:
    for error, code, field in (
        (RequestFailed("it broke"), "server_error", None),
        (QueueFull("it broke"), "rate_limit_exceeded", None),
        (InvalidRequest("broke it", field="input"), "invalid_prompt", "input"),
    ):
        made = formatter({"stream": True})
        *_, told, failed = json_events((made.feed(deltas("a")[0]) + made.error(error)).decode())
        assert told == {
            "type": "error",
            "sequence_number": 5,
            "code": code,
            "message": str(error),
            "param": field,
        }
        assert (failed["type"], failed["sequence_number"]) == ("response.failed", 6)
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": code, "message": str(error)}


def test_incomplete() -> None:
    for reason, told in ((FinishReason.LENGTH, "max_output_tokens"), (FinishReason.ABORT, "content_filter")):
        response = answer("Hel", body={}, reason=reason)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": told})
        assert response["completed_at"] is None
        assert response["output"][0]["status"] == "incomplete"


def test_empty_text() -> None:
    response = answer(body={})
    assert [(item["type"], item["content"][0]["text"]) for item in response["output"]] == [("message", "")]


def test_logprobs() -> None:
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    [item] = answer("Hel", "lo", body=body)["output"]
    assert [(told["token"], told["bytes"]) for told in item["content"][0]["logprobs"]] == [
        ("Hel", [72, 101, 108]),
        ("lo", [108, 111]),
        ("</s>", [60, 47, 115, 62]),
    ]
    assert parse(body).request.sampling_params.logprobs == 1
    assert parse({"top_logprobs": 1}).request.sampling_params.logprobs is None


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_items(size: int) -> None:
    """Reasoning, text and calls are items in the order in which they were written, however the text is split."""
    text = f"<think>Hm.</think>\n\nFirst. {CALL} {CALL}"
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    response = answer(*pieces, body={"tools": [TOOL]}, reasoning_parser="qwen3")
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, first, second = response["output"]
    assert (reasoning["summary"], reasoning["content"]) == ([], [{"type": "reasoning_text", "text": "Hm."}])
    assert message["content"][0]["text"] == "First."
    assert [(call["name"], call["arguments"]) for call in (first, second)] == [("f", '{"a": 1}')] * 2
    assert first["call_id"] != second["call_id"]
    assert len({item["id"] for item in response["output"]}) == 4
    assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] <= len(pieces)


def test_reasoning_tokens() -> None:
    usage = answer("<think>", "Hm", ".", "</think>", "Four", body={}, reasoning_parser="qwen3")["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (6, {"reasoning_tokens": 3})


def test_reasoning_may_be_left_out() -> None:
    hidden = {"include_reasoning": False}
    response = answer("<think>", "Hm.", "</think>", "Four", body=hidden, reasoning_parser="qwen3")
    assert [item["type"] for item in response["output"]] == ["message"]
    cut = answer("<think>", "Hm.", body=hidden, reason=FinishReason.LENGTH, reasoning_parser="qwen3")
    assert (cut["status"], cut["output"]) == ("incomplete", [])


def test_text_after_a_call() -> None:
    response = answer(CALL[:-20], CALL[-20:] + "Then", " text.", body={"tools": [TOOL]})
    assert [item["type"] for item in response["output"]] == ["function_call", "message"]
    assert response["output"][0]["arguments"] == '{"a": 1}'


def test_one_call_without_parallel_calls() -> None:
    for parallel, count in ((False, 1), (True, 2)):
        response = answer(CALL, CALL[:-20], CALL[-20:], body={"tools": [TOOL], "parallel_tool_calls": parallel})
        assert [item["arguments"] for item in response["output"]] == ['{"a": 1}'] * count


@pytest.mark.parametrize(
    ("choice", "text"),
    [("required", '[{"name": "f", "arguments": {"a": 1}}]'), ({"type": "function", "name": "f"}, '{"a": 1}')],
)
def test_a_call_that_must_be_made(choice: object, text: str) -> None:
    response = answer(text, body={"tools": [TOOL], "tool_choice": choice})
    [call] = response["output"]
    assert (call["name"], call["arguments"]) == ("f", '{"a": 1}')
    assert response["tool_choice"] == choice


def test_the_request_is_repeated_on_one_line() -> None:
    """Also text with line breaks, because an event is one line."""
    schema = {"type": "json_schema", "name": "n", "schema": {"a": "\n"}, "description": "d", "strict": True}
    body = {
        "instructions": "Be\nbrief.",
        "metadata": {"a\n": "b\r\n"},
        "tools": [TOOL | {"description": "Do\nit.", "strict": True}],
        "text": {"format": schema, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "model": "loud",
        "max_output_tokens": 5,
        "parallel_tool_calls": False,
        "user": "u",
        "truncation": "auto",
    }
    response = answer("{}", body=body)
    assert {name: response[name] for name in body} == body


# Bodies


def prompt_of(parsed: Parsed) -> ChatPrompt:
    [prompt] = parsed.request.prompts
    assert isinstance(prompt.content, ChatPrompt)
    return prompt.content


def call(name: str, call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc", "call_id": call_id, "name": name, "arguments": '{"a": 1}'}


def chat_call(name: str, call_id: str = "c") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"a": 1}}}


SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hi", [USER]),
        ([USER], [USER]),
        ([USER | {"type": None}], [USER]),
        ([{"role": "developer", "content": "x"}, USER], [{"role": "system", "content": "x"}, USER]),
        (
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
            [{"role": "user", "content": "ab"}],
        ),
        (
            [USER, SAID | {"content": [{"type": "output_text", "text": "x", "annotations": []}]}, USER],
            [USER, {"role": "assistant", "content": "x"}, USER],
        ),
        (
            [SAID | {"content": [{"type": "refusal", "refusal": "No."}]}, USER],
            [{"role": "assistant", "content": "No."}, USER],
        ),
        (
            [USER, THOUGHT, SAID | {"content": "x"}, call("f"), call("g", "d"), USER],
            [
                USER,
                {
                    "role": "assistant",
                    "content": "x",
                    "reasoning_content": "Hm.",
                    "tool_calls": [chat_call("f"), chat_call("g", "d")],
                },
                USER,
            ],
        ),
        (
            [call("f"), SAID | {"content": "x"}, {"type": "function_call_output", "call_id": "c", "output": "7"}],
            [
                {"role": "assistant", "content": "x", "tool_calls": [chat_call("f")]},
                {"role": "tool", "content": "7", "tool_call_id": "c"},
            ],
        ),
        (
            [call("f"), {"type": "function_call_output", "call_id": "c", "output": "7"}, call("g", "d")],
            [
                {"role": "assistant", "content": "", "tool_calls": [chat_call("f")]},
                {"role": "tool", "content": "7", "tool_call_id": "c"},
                {"role": "assistant", "content": "", "tool_calls": [chat_call("g", "d")]},
            ],
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "7"}]}],
            [{"role": "tool", "content": "7", "tool_call_id": "c"}],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]}, call("f")],
            [{"role": "assistant", "content": "", "reasoning_content": "S", "tool_calls": [chat_call("f")]}],
        ),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, USER], [USER]),
        (
            [SAID | {"content": "a"}, SAID | {"content": "b"}, USER],
            [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER],
        ),
    ],
)
def test_input(given: object, messages: list[dict[str, Any]]) -> None:
    prompt = prompt_of(parse({"input": given}))
    assert (prompt.messages, prompt.add_generation_prompt) == (messages, True)
    instructed = prompt_of(parse({"input": given, "instructions": "Be brief."}))
    assert instructed.messages == [{"role": "system", "content": "Be brief."}, *messages]


@pytest.mark.parametrize(("status", "continued"), [("completed", False), ("in_progress", True), ("incomplete", True)])
def test_an_incomplete_message_is_continued(status: str, continued: bool) -> None:
    prompt = prompt_of(parse({"input": [USER, SAID | {"status": status, "content": "x"}]}))
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (continued, not continued)


def test_images() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "detail": "auto", "image_url": "data:x"}]
    body = {"instructions": "x", "input": [call("f"), {"role": "user", "content": parts}]}
    with pytest.raises(InvalidRequest, match=re.escape("input[1].content: contains an image")):
        parse(body)
    dialect = ResponseDialect(lambda: facts("m", takes_images=True), budget=BUDGET)
    parsed = dialect.parse(Payload(data=json.dumps(body | {"truncation": "auto"}).encode(), request_id="r"))
    [image] = prompt_of(parsed).images
    assert (image.url, image.field) == ("data:x", "input[1].content[1].image_url")
    assert parsed.request.truncate is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        (
            {"temperature": 0, "top_p": 0.5, "tools": None, "text": None, "store": True},
            {"temperature": 0, "top_p": 0.5},
        ),
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"structured_outputs": StructuredOutputs(json_object=True)}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}}}},
            {"structured_outputs": StructuredOutputs(json='{"type":"object"}')},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "strict": False, "schema": {}}}},
            {"structured_outputs": StructuredOutputs(json="{}", strict=False)},
        ),
        ({"tools": [TOOL]}, {"skip_special_tokens": False}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        ({"stop": "a", "seed": -1, "top_k": 5}, {"stop": ("a",), "seed": 2**64 - 1, "top_k": 5}),
    ],
)
def test_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(given).request.sampling_params == SamplingParams(**expected)


def test_a_tool_that_must_be_called_goes_before_the_format() -> None:
    """instructor sends both."""
    asked = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 4.0}
    both = parse(asked | {"text": {"format": {"type": "json_object"}}})
    assert both.request.sampling_params == parse(asked).request.sampling_params


def test_template_variables() -> None:
    for given, expected in (
        ({}, {}),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
    ):
        assert prompt_of(parse(given)).template_kwargs == expected


def test_truncation() -> None:
    """`auto` leaves room for the answer."""
    assert parse({}).request.truncate is None
    assert parse({"truncation": "disabled"}).request.truncate is None
    assert parse({"truncation": "auto"}).request.truncate == 4095
    assert parse({"truncation": "auto", "max_output_tokens": 96}).request.truncate == 4000
    assert parse({"truncation": "auto", "max_output_tokens": 9999}).request.truncate == 1


def test_adapter() -> None:
    assert parse({"model": "loud"}).request.prompts[0].adapter == "loud"
    assert parse({"model": "other"}).request.prompts[0].adapter is None


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"input": None}, "input", "Expected"),
        ({"input": []}, "input", "empty"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "empty"),
        ({"input": ["hi"]}, "input[0]", "Expected"),
        ({"input": [USER, {"role": "tool", "content": "x"}]}, "input[1].role", "Invalid"),
        ({"input": [{"role": "user"}]}, "input[0]", "content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "'item_reference' is not supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", "input_file"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"temperature": -1}, "temperature", "from 0"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "Invalid"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", "schema"),
        ({"include": ["x"]}, "include[0]", "Invalid"),
        ({"metadata": {"a": 1}}, "metadata[...]", "Expected"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "<= 16"),
        ({"metadata": {"a": "x" * 513}}, "metadata[...]", "<= 512"),
        ({"user": "x" * 1025}, "user", "<= 1024"),
        ({"tools": [TOOL, TOOL]}, "tools", "same name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search' is not supported"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "'mcp' is not supported"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name", "1 to 128 ASCII letters"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "not one of the tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"conversation": "conv_1"}, "conversation", "not stored"),
        ({"prompt": {"id": "x"}}, "prompt", "not stored"),
        ({"background": True}, "background", "not stored"),
    ],
)
def test_errors(given: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(given)
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}}, "text.format"),
    ],
)
def test_an_error_of_structured_output_next_to_a_format(given: dict[str, Any], field: str) -> None:
    """The last one cannot be combined with the format."""
    with pytest.raises(InvalidRequest) as caught:
        parse({"text": {"format": {"type": "json_object"}}} | given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": {"type": "text"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"text": {"format": {"type": "json_object"}}, "tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"text": {"format": {"type": "json_object"}}, "tools": [TOOL]}, "text.format"),
    ],
)
def test_an_engine_error_names_the_field_that_constrains_the_answer(given: dict[str, Any], field: str) -> None:
    assert parse(given).alias("structured_outputs") == field


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt", "background"])
def test_null_is_absent(name: str) -> None:
    assert parse({name: None}).request == parse({}).request
    assert parse({"background": False}).request == parse({}).request


def test_a_prompt_that_is_too_long_names_the_input() -> None:
    parsed = parse({})
    with pytest.raises(ContextLengthExceeded) as caught:
        parsed.check_length(parsed.request, 0, 5000, facts().capabilities)
    assert caught.value.field == "input"


# Over HTTP, on the echo backend, whose chat template renders "user: hi\nassistant: "


def create(server: Server, **body: Any) -> requests.Response:
    return server.invoke({"input": "hi", **body}, path="/v1/responses", timeout=60)


def test_response(echo_server: Server) -> None:
    created = create(echo_server, max_output_tokens=8)
    assert (created.status_code, created.headers["Content-Type"]) == (200, "application/json")
    response = created.json()
    assert response["id"] == f"resp_{created.headers['x-request-id']}"
    assert (response["status"], response["model"], response["store"]) == ("incomplete", "m", False)
    assert response["output"][0]["content"][0]["text"] == "user: hi"
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 8, 28)
    stream = create(echo_server, max_output_tokens=8, stream=True)
    assert (stream.headers["Content-Type"], stream.headers["Cache-Control"]) == ("text/event-stream", "no-cache")
    streamed = replayed(json_events(stream.content.decode()))
    assert without_request_id(streamed) == without_request_id(response)


def without_request_id(response: dict[str, Any]) -> dict[str, Any]:
    return without_ids(response) | {"id": "", "output": [item | {"id": ""} for item in response["output"]]}


def test_errors_over_http(echo_server: Server) -> None:
    for body, status, param in (
        ({"previous_response_id": "x"}, 400, "previous_response_id"),
        ({"input": "x" * 5000}, 400, "input"),
        ({"input": "RAISE@2"}, 500, None),
    ):
        refused = create(echo_server, **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    events = json_events(create(echo_server, input="RAISE@2", stream=True).content.decode())
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert "failed at token 2" in events[-2]["message"]


def test_a_conversation_with_tools(start_server: StartServer) -> None:
    """The output of a response is part of the next one's input, unchanged."""
    server = start_server("option.rolling_batch=echo\noption.tool_call_parser=hermes\noption.max_model_len=4096\n")
    first = create(server, input=CALL, tools=[TOOL]).json()
    [called] = [item for item in first["output"] if item["type"] == "function_call"]
    assert (called["name"], json.loads(called["arguments"])) == ("f", {"a": 1})
    returned = {"type": "function_call_output", "call_id": called["call_id"], "output": "sunny"}
    second = create(server, input=[{"role": "user", "content": "Call."}, *first["output"], returned])
    assert "sunny" in second.json()["output"][0]["content"][0]["text"]
