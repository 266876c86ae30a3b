"""Anthropic's messages: the bytes that the formatters write, how bodies are parsed, and answers over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
import requests
from capabilities import facts
from facts import raises
from formatting import written
from hypothesis import given
from hypothesis import strategies as st
from prompts import rendered
from server_sent_events import json_events
from serving import API_KEY, Server, StartServer

from formatters.anthropic.errors import status_error
from formatters.anthropic.messages import MessageFormatter, MessageJsonLinesFormatter, MessageSseFormatter
from lmi_handlers.apis.anthropic.dialect import MessagesDialect
from lmi_handlers.apis.base import Payload
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import (
    EngineDead,
    InvalidBody,
    InvalidRequest,
    LMIError,
    PayloadTooLarge,
    QueueFull,
    TurnConflict,
)
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed

BUDGET = Budget.of(ServingProperties())
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}


def parse(body: dict[str, Any], *, takes_images: bool = False, **options: Any) -> Parsed:
    found = facts("served", "{{ tools }}<tool_call>", adapters=("loud",), takes_images=takes_images)
    dialect = MessagesDialect(lambda: found, budget=BUDGET, **options)
    whole = {"model": "served", "max_tokens": 9, "messages": [USER], **body}
    return dialect.parse(Payload(data=json.dumps(whole, indent=1).encode(), request_id="r"))


def formatter(body: dict[str, Any], **options: Any) -> MessageFormatter:
    parsed = parse(body, **options)
    made = parsed.formatter(parsed.request, rendered(10, "Say: "))
    assert isinstance(made, MessageFormatter)
    return made


def deltas(*pieces: str, reason: FinishReason = FinishReason.EOS_TOKEN, stop: str | None = None) -> list[TextDelta]:
    """One token per piece, then the end of the sequence."""
    tokens = [Token(place, piece, data=piece.encode()) for place, piece in enumerate(pieces)]
    end = Token(99, "</s>", special=True, data=b"</s>")
    return [
        *(TextDelta(tokens=(token,), text=token.text) for token in tokens),
        TextDelta(tokens=(end,), text="", finish_reason=reason, stop_string=stop),
    ]


def answer(*pieces: str, body: dict[str, Any], **options: Any) -> Any:
    """The message, which is the same whole and streamed but for the ids of calls. Checks the events."""
    ending = {name: options.pop(name) for name in ("reason", "stop") if name in options}
    parts = deltas(*pieces, **ending)
    whole = json.loads(written(formatter(body, **options), *parts))
    streamed = replayed(json_events(written(formatter(body | {"stream": True}, **options), *parts)))
    assert without_ids(streamed) == without_ids(whole)
    return whole


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"content": [block | ({"id": ""} if "id" in block else {}) for block in message["content"]]}


def replayed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events add up to, as clients do it."""
    start, ping, *between, end, stop = events
    assert [event["type"] for event in (start, ping, end, stop)] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    content: list[dict[str, Any]] = []
    texts: list[str] = []
    is_open = False
    for event in between:
        if event["type"] == "content_block_start":
            assert (is_open, event["index"]) == (False, len(content))
            content.append(event["content_block"])
            texts.append("")
        assert event["index"] == len(content) - 1
        is_open = event["type"] != "content_block_stop"
        block, delta = content[-1], event.get("delta", {})
        match delta.get("type"):
            case "text_delta":
                block["text"] += delta["text"]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                texts[-1] += delta["partial_json"]
        if event["type"] == "content_block_stop" and block["type"] == "tool_use":
            block["input"] = json.loads(texts[-1] or "{}")
    assert not is_open
    return {**message, "content": content, "usage": end["usage"], **end["delta"]}


# Bytes

BEGUN = (
    '{"id":"msg_r","type":"message","role":"assistant","model":"served","content":[],"stop_reason":null,'
    '"stop_sequence":null,"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,'
    '"output_tokens":0}}'
)
WHOLE = (
    '{"id":"msg_r","type":"message","role":"assistant","model":"served","content":[{"type":"text","text":"Hello"}],'
    '"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":6,"cache_creation_input_tokens":0,'
    '"cache_read_input_tokens":4,"output_tokens":3}}'
)
EVENTS = (
    ("message_start", f'"message":{BEGUN}'),
    ("ping", ""),
    ("content_block_start", '"index":0,"content_block":{"type":"text","text":""}'),
    ("content_block_delta", '"index":0,"delta":{"type":"text_delta","text":"Hel"}'),
    ("content_block_delta", '"index":0,"delta":{"type":"text_delta","text":"lo"}'),
    ("content_block_stop", '"index":0'),
    (
        "message_delta",
        '"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":6,'
        '"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3}',
    ),
    ("message_stop", ""),
)


def data_of(events: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [(name, f'{{"type":"{name}"{"," if fields else ""}{fields}}}') for name, fields in events]


def test_document() -> None:
    made = formatter({})
    made.cached_tokens = 4
    assert written(made, *deltas("Hel", "lo")) == WHOLE


def test_stream() -> None:
    made = formatter({"stream": True})
    made.cached_tokens = 4
    expected = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in data_of(EVENTS))
    assert written(made, *deltas("Hel", "lo")) == expected


def test_lines() -> None:
    made = formatter({"stream": True}, stream_formatters=[MessageJsonLinesFormatter])
    made.cached_tokens = 4
    assert written(made, *deltas("Hel", "lo")) == "".join(f"{data}\n" for _, data in data_of(EVENTS))


def test_events_of_thoughts_and_calls() -> None:
    made = formatter({"stream": True, "tools": [TOOL], **THINKING}, reasoning_parser="qwen3")
    text = re.sub(r'"id":"\w{9}"', '"id":"c"', written(made, *deltas("<think>Hm.</think>", CALL)))
    blocks = text[text.index("event: content_block_start") : text.index("event: message_delta")]
    found = re.search(r'"signature":"([^"]{44})"', blocks)
    assert found is not None
    signature = found[1]
    expected = (
        ("content_block_start", '"index":0,"content_block":{"type":"thinking","thinking":"","signature":""}'),
        ("content_block_delta", '"index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}'),
        ("content_block_delta", f'"index":0,"delta":{{"type":"signature_delta","signature":"{signature}"}}'),
        ("content_block_stop", '"index":0'),
        ("content_block_start", '"index":1,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}'),
        ("content_block_delta", '"index":1,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\": 1}"}'),
        ("content_block_stop", '"index":1'),
    )
    assert blocks == "".join(f"event: {name}\ndata: {data}\n\n" for name, data in data_of(expected))


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (EngineDead("it broke"), "api_error", 500),
        (QueueFull("it broke"), "rate_limit_error", 429),
        (InvalidRequest("broke it", field="system"), "invalid_request_error", 400),
        (PayloadTooLarge("it broke"), "request_too_large", 413),
        (TurnConflict("it broke"), "invalid_request_error", 409),
    ],
)
def test_errors(error: LMIError, kind: str, status: int) -> None:
    document = f'{{"type":"error","error":{{"type":"{kind}","message":"{error}"}}}}'
    made = formatter({"stream": True})
    made.feed(deltas("a")[0])
    assert made.error(error).decode() == f"event: error\ndata: {document}\n\n"
    reply = MessagesDialect(lambda: facts("m"), budget=BUDGET).error(error)
    assert (reply.status, reply.body.decode()) == (status, document)


@pytest.mark.parametrize(
    ("ending", "reason", "sequence"),
    [
        ({"reason": FinishReason.EOS_TOKEN}, "end_turn", None),
        ({"reason": FinishReason.LENGTH}, "max_tokens", None),
        ({"reason": FinishReason.ABORT}, "refusal", None),
        ({"reason": FinishReason.STOP_SEQUENCE}, "end_turn", None),
        ({"reason": FinishReason.STOP_SEQUENCE, "stop": "END"}, "stop_sequence", "END"),
    ],
)
def test_stop_reasons(ending: dict[str, Any], reason: str, sequence: str | None) -> None:
    message = answer("Hel", body={}, **ending)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert answer(body={}, **ending)["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks(size: int) -> None:
    """Thoughts, text and calls are blocks in the order in which they were written, however the text is split."""
    text = f"<think>Hm.</think>\n\nFirst. {CALL} {CALL}"
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    message = answer(*pieces, body={"tools": [TOOL], **THINKING}, reasoning_parser="qwen3")
    thoughts, words, first, second = message["content"]
    assert (thoughts["type"], thoughts["thinking"], words) == ("thinking", "Hm.", {"type": "text", "text": "First."})
    assert [(call["type"], call["name"], call["input"]) for call in (first, second)] == [
        ("tool_use", "f", {"a": 1})
    ] * 2
    assert first["id"] != second["id"]
    assert message["stop_reason"] == "tool_use"


def test_a_message_without_content_has_an_empty_text() -> None:
    """Clients read `content[0]`."""
    for pieces in ((), ("<think>", "Hm.")):
        assert answer(*pieces, body={}, reasoning_parser="qwen3")["content"] == [{"type": "text", "text": ""}]


def test_thoughts_are_shown_only_if_they_are_asked_for() -> None:
    for body in ({}, {"thinking": {"type": "disabled"}}):
        message = answer("<think>", "Hm.", "</think>", "Four", body=body, reasoning_parser="qwen3")
        assert message["content"] == [{"type": "text", "text": "Four"}]


@pytest.mark.parametrize(
    ("call", "reason", "sequence"), [(CALL, "tool_use", None), (CALL[:-14], "stop_sequence", "END")]
)
def test_a_stop_string_after_a_whole_call_does_not_keep_it_from_being_made(
    call: str, reason: str, sequence: str | None
) -> None:
    made = formatter({"tools": [TOOL]})
    message = json.loads(written(made, *deltas(call, reason=FinishReason.STOP_SEQUENCE, stop="END")))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "authentication_error"), (413, "request_too_large"), (503, "overloaded_error"), (504, "timeout_error")],
)
def test_errors_of_the_server_itself_have_the_types_of_the_routes_errors(status: int, kind: str) -> None:
    assert status_error(status, "cause").error.type == kind


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("", "jsonlines"), ("text/event-stream", "event-stream"), ("application/jsonlines", "jsonlines")],
)
def test_accept_chooses_the_stream_on_the_invoke_routes(accept: str, content_type: str) -> None:
    kinds = [MessageJsonLinesFormatter, MessageSseFormatter]
    dialect = MessagesDialect(lambda: facts("m"), budget=BUDGET, stream_formatters=kinds)
    body = {"max_tokens": 9, "messages": [USER], "stream": True, "anthropic_version": "x"}
    parsed = dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r", accept=accept))
    assert parsed.formatter(parsed.request, rendered(1, "a")).content_type.endswith(content_type)


def test_an_input_that_is_cut_off_is_empty() -> None:
    made = formatter({"tools": [TOOL]})
    message = json.loads(written(made, *deltas(CALL[:-14], reason=FinishReason.LENGTH)))
    assert (message["content"][0]["input"], message["stop_reason"]) == ({}, "max_tokens")


@pytest.mark.parametrize(
    ("choice", "text"),
    [({"type": "any"}, '[{"name": "f", "arguments": {"a": 1}}]'), ({"type": "tool", "name": "f"}, '{"a": 1}')],
)
def test_a_call_that_must_be_made(choice: object, text: str) -> None:
    [call] = answer(text, body={"tools": [TOOL], "tool_choice": choice})["content"]
    assert (call["name"], call["input"]) == ("f", {"a": 1})


# Bodies


def prompt_of(parsed: Parsed) -> ChatPrompt:
    [prompt] = parsed.request.prompts
    assert isinstance(prompt.content, ChatPrompt)
    return prompt.content


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


USE = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "7"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([USER], [USER]),
        ([{"role": "user", "content": [text("a"), text("b")]}], [{"role": "user", "content": "ab"}]),
        (
            [USER, {"role": "assistant", "content": [THOUGHT, text("x"), USE]}, {"role": "user", "content": [RESULT]}],
            [
                USER,
                {"role": "assistant", "content": "x", "reasoning_content": "Hm.", "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "7", "tool_call_id": "c"},
            ],
        ),
        (
            [{"role": "user", "content": [RESULT, RESULT | {"content": [text("8")], "is_error": True}, text("now")]}],
            [
                {"role": "tool", "content": "7", "tool_call_id": "c"},
                {"role": "tool", "content": "8", "tool_call_id": "c"},
                {"role": "user", "content": "now"},
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}],
            [{"role": "tool", "content": "", "tool_call_id": "c"}],
        ),
        ([{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, USER], [USER]),
        ([USER, {"role": "system", "content": "now"}], [USER, {"role": "system", "content": "now"}]),
    ],
)
def test_messages(given: object, messages: list[dict[str, Any]]) -> None:
    prompt = prompt_of(parse({"messages": given}))
    assert (prompt.messages, prompt.add_generation_prompt) == (messages, True)
    for system in ("Be brief.", [text("x-anthropic-billing-header: cch=1;"), text("Be brief.")]):
        instructed = prompt_of(parse({"messages": given, "system": system}))
        assert instructed.messages == [{"role": "system", "content": "Be brief."}, *messages]


def test_instructions_go_first_if_the_template_takes_them_nowhere_else() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    dialect = MessagesDialect(lambda: facts("m", template), budget=BUDGET)
    late = [USER, {"role": "system", "content": "Be quick."}, USER]
    body = {"max_tokens": 9, "system": "Be brief.", "messages": late}
    parsed = dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r"))
    assert prompt_of(parsed).messages == [{"role": "system", "content": "Be brief.\nBe quick."}, USER, USER]


def test_a_last_message_of_the_assistants_is_continued() -> None:
    prompt = prompt_of(parse({"messages": [USER, {"role": "assistant", "content": "{"}]}))
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


def test_images() -> None:
    sources = [
        {"type": "base64", "media_type": "image/png", "data": "eA=="},
        {"type": "url", "url": "https://example.com/a.png"},
    ]
    blocks = [text("a"), *({"type": "image", "source": source} for source in sources)]
    body = {"system": "x", "messages": [USER, {"role": "user", "content": blocks}]}
    with pytest.raises(InvalidRequest, match=re.escape("messages[1].content: contains an image")):
        parse(body)
    parsed = parse(body, takes_images=True)
    images = prompt_of(parsed).images
    assert [image.url for image in images] == ["data:image/png;base64,eA==", "https://example.com/a.png"]
    assert parsed.alias(images[0].field) == "messages[1].content[1].source"
    seen = RESULT | {"content": blocks}
    [image, _] = prompt_of(parse({"messages": [{"role": "user", "content": [seen]}]}, takes_images=True)).images
    assert image.field == "messages[0].content[0].content[1].image_url"


@pytest.mark.parametrize("separator", [":", ": ", " : "])
def test_base64_has_the_limit_of_images(separator: str) -> None:
    """Not that of text."""
    image = b'"data"' + separator.encode() + b'"' + b"A" * (BUDGET.max_text_bytes + 1) + b'"'
    BUDGET.check_text(b'{"media_type": "image/png", ' + image + b"}")
    with pytest.raises(PayloadTooLarge, match="besides images"):
        BUDGET.check_text(b'{"text": ' + image.partition(separator.encode())[2] + b"}")
    with pytest.raises(PayloadTooLarge, match="max_image_bytes"):
        BUDGET.check_text(b"[" + image + b"," + image + b"]")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"stop_sequences": ["a", "b"], "top_k": 5, "top_p": 0.5}, {"stop": ("a", "b"), "top_k": 5, "top_p": 0.5}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"tools": [TOOL]}, {"skip_special_tokens": False}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"structured_outputs": StructuredOutputs(json='{"type":"object"}')},
        ),
    ],
)
def test_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(given).request.sampling_params == SamplingParams(max_tokens=9, **expected)


def test_an_engine_error_names_the_field_that_constrains_the_answer() -> None:
    both = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [TOOL]}
    assert parse(both).alias("structured_outputs") == "output_config.format"
    assert parse(both | {"tool_choice": {"type": "any"}}).alias("structured_outputs") == "tools"


def test_parallel_calls() -> None:
    for disabled, most in ((None, 8), (False, 8), (True, 1)):
        choice = {"type": "any", "disable_parallel_tool_use": disabled}
        asked = parse({"tools": [TOOL], "tool_choice": choice}).request.sampling_params.structured_outputs
        assert asked is not None
        assert json.loads(asked.json or "")["maxItems"] == most
        message = answer(CALL, CALL, body={"tools": [TOOL], "tool_choice": choice | {"type": "auto"}})
        assert len(message["content"]) == min(most, 2)


def test_template_variables() -> None:
    for body, expected in (
        ({}, {"enable_thinking": False}),
        (THINKING, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"output_config": {"effort": "high"}}, {"enable_thinking": False, "reasoning_effort": "high"}),
    ):
        assert prompt_of(parse(body)).template_kwargs == expected


def test_ignored_fields() -> None:
    ignored = {"service_tier": "auto", "container": "c", "betas": ["b"], "cache_control": {"type": "ephemeral"}}
    body = {"metadata": {"user_id": "u"}, "anthropic_version": "bedrock-2023-05-31", **ignored}
    assert set(parse(body).request.ignored_parameters) == ignored.keys()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "owner", "content": "a"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages[0].content[0]"),
        ({"messages": [USER] * 100_000}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 100_000}, "stop_sequences"),
        ({"system": [text("a")] * 100_000}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tools": [TOOL | {"name": "f f"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"metadata": {"user_id": "u" * 2000}}, "metadata.user_id"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"a": "x" * 2_000_000}}}}, "output_config"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)
def test_wrong_bodies(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert (caught.value.field or "").startswith(field), caught.value


@pytest.mark.parametrize("name", ["a b", "", "f\n", "a" * 129])
def test_the_rule_for_names_of_tools_is_in_words(name: str) -> None:
    with raises(InvalidBody, "tools[1].name: 1 128 ASCII letters digits"):
        parse({"tools": [TOOL, {**TOOL, "name": name}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("type", "content", "role")), inner),
    max_leaves=6,
)


@given(st.sampled_from(("messages", "system", "tools", "tool_choice", "thinking", "output_config", "top_k")), JSON)
def test_any_value_is_taken_or_refused(field: str, value: Any) -> None:
    with contextlib.suppress(InvalidRequest):
        parse({field: value})


# Over HTTP


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 20, "messages": [USER], **fields}


def test_http(echo_server: Server) -> None:
    reply = echo_server.invoke(body_of(), path="/v1/messages", headers={"anthropic-version": "2023-06-01"})
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, "application/json")
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    whole = reply.json()
    streamed = echo_server.invoke(body_of(stream=True), path="/v1/messages")
    assert streamed.headers["request-id"] == streamed.headers["x-request-id"]
    assert replayed(json_events(streamed.text)) | {"id": whole["id"]} == whole


def test_a_stop_sequence_is_named(echo_server: Server) -> None:
    messages = [{"role": "user", "content": "one two three"}]
    reply = echo_server.invoke(body_of(messages=messages, stop_sequences=["x", "two"]), path="/v1/messages").json()
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "two")
    assert reply["content"][0]["text"].endswith("one ")


def test_bedrocks_bodies_on_the_invoke_routes(echo_server: Server) -> None:
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 20, "messages": [USER]}
    assert echo_server.invoke(body).json()["type"] == "message"
    streaming = {"X-Amzn-SageMaker-Forwarded-Api": "InvokeEndpointWithResponseStream"}
    replayed(json_events(echo_server.invoke(body, headers=streaming).text))
    refused = echo_server.invoke(body | {"top_a": 1})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_tokens_are_counted(echo_server: Server) -> None:
    for fields in ({}, {"system": "Be brief.", "tools": [TOOL]}):
        counted = echo_server.invoke({"model": "m", "messages": [USER], **fields}, path="/v1/messages/count_tokens")
        assert (counted.status_code, counted.json().keys()) == (200, {"input_tokens"}), counted.text
        usage = echo_server.invoke(body_of(**fields), path="/v1/messages").json()["usage"]
        assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_errors_over_http(echo_server: Server) -> None:
    for path, body, status, kind in (
        ("/v1/messages", {"messages": []}, 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", body_of(), 400, "invalid_request_error"),  # it takes no `max_tokens`
        ("/v1/messages/batches", {}, 404, "not_found_error"),
    ):
        reply = echo_server.invoke(body, path=path)
        assert (reply.status_code, reply.json()["type"], reply.json()["error"]["type"]) == (status, "error", kind)
    reply = requests.post(f"{echo_server.url}/v1/messages", data=b"{", headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.headers["request-id"]) == (400, reply.headers["x-request-id"])


def test_the_key_may_be_in_x_api_key(guarded_server: Server) -> None:
    for key, status in ((API_KEY, 200), (API_KEY + "x", 401), ("", 401)):
        reply = requests.post(
            f"{guarded_server.url}/v1/messages", json=body_of(), headers={"x-api-key": key}, timeout=60
        )
        assert reply.status_code == status


def test_json_lines(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.output_formatter=jsonlines\n")
    reply = server.invoke(body_of(anthropic_version="bedrock-2023-05-31", stream=True))
    assert reply.headers["Content-Type"] == "application/jsonlines"
    replayed([json.loads(line) for line in reply.text.splitlines()])
