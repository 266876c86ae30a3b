"""How OpenAI's bodies are parsed and how errors are reported. No server is needed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from capabilities import capabilities, facts
from formatting import written
from prompts import rendered

from formatters.openai.chat import (
    ChatFormatter,
)
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestFailed,
    UnsupportedFeature,
    UnsupportedMediaType,
)
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import ChatPrompt, Prompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.infill import FORMATS

BUDGET = Budget.of(ServingProperties())
USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
TEXT: dict[bool, dict[str, Any]] = {True: {"messages": [USER]}, False: {"prompt": "hi"}}
"""The prompt of a chat, and of a completion."""


def dialect() -> ChatDialect:
    return ChatDialect(lambda: facts("served", "{{ tools }}", adapters=("loud",)), budget=BUDGET)


def parse_infill(body: dict[str, Any]) -> Parsed:
    """Parse a completion for a model with Qwen's tokens, of which number 7 ends the text."""
    coder = msgspec.structs.replace(facts(), infill=FORMATS[0], infill_ends=(7,))
    payload = Payload(data=json.dumps(body).encode(), request_id="r")
    return CompletionsDialect(lambda: coder, budget=BUDGET).parse(payload)


def parse(body: Any, *, chat: bool = True, stream: bool = False) -> Parsed:
    payload = Payload(data=json.dumps(body).encode(), request_id="r", stream=stream)
    return (dialect() if chat else CompletionsDialect(dialect()._facts, budget=BUDGET)).parse(payload)


def prompt_of(parsed: Parsed) -> ChatPrompt:
    [prompt] = parsed.request.prompts
    assert isinstance(prompt.content, ChatPrompt)
    return prompt.content


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"temperature": 0, "top_p": None, "n": None, "stop": None, "stream": None, "seed": None}, {"temperature": 0}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"top_p": 1}, {}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {5: -100}}),
        ({"logit_bias": [0, 0.5, 0]}, {"logit_bias": {1: 0.5}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False}, {}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": StructuredOutputs(json_object=True)}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"structured_outputs": StructuredOutputs(json='{"type":"object"}')},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": False}}},
            {"structured_outputs": StructuredOutputs(json="{}", strict=False)},
        ),
        (
            {"response_format": {"type": "json_object", "value": {"properties": {}}}},
            {"structured_outputs": StructuredOutputs(json='{"properties":{}}')},
        ),
        (
            {"response_format": {"type": "json", "value": {"properties": {}}}},
            {"structured_outputs": StructuredOutputs(json='{"properties":{}}')},
        ),
        (
            {"response_format": {"type": "regex", "value": "a+"}},
            {"structured_outputs": StructuredOutputs(regex="a+")},
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            {"structured_outputs": StructuredOutputs(choice=("a", "b"))},
        ),
        ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}, {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}),
        ({"min_tokens": 2, "ignore_eos": True}, {"min_tokens": 2, "ignore_eos": True}),
        ({"tools": []}, {}),
        ({"tools": [TOOL]}, {"skip_special_tokens": False}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"structured_outputs": StructuredOutputs(json='{"type":"object","properties":{"a":{}}}')},
        ),
    ],
)
def test_fields_of_a_chat(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse({"messages": [USER], **given}).request.sampling_params == SamplingParams(**expected)


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type", "Invalid"),
        ({"temperature": -1}, "temperature", "from 0"),
        ({"temperature": "1"}, "temperature", "Expected"),
        ({"n": 0}, "n", "from 1"),
        ({"n": 129}, "n", "from 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 1}, "top_logprobs", "logprobs"),
        ({"presence_penalty": 2.1}, "presence_penalty", "from -2"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "Expected"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "Invalid"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "response_format",
            "cannot be combined with guided_regex",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
            "cannot be combined with structured_outputs",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {}, "guided_regex": "a"},
            "response_format",
            "cannot be combined with guided_regex",
        ),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json", "cannot be combined with guided_regex"),
        (
            {"guided_json": {}, "structured_outputs": {"regex": "a"}},
            "guided_json",
            "cannot be combined with structured_outputs",
        ),
        ({"response_format": {"type": "text"}, "guided_regex": ""}, "guided_regex", "must not be empty"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"tools": [TOOL, TOOL]}, "tools", "same name"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type", "web_search"),
        ({"tools": [TOOL], "tool_choice": "g"}, "tool_choice", "not one of the tools"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only be set with `stream`"),
        ({"stream": False, "stream_options": {"include_usage": False}}, "stream_options", "only be set with"),
        ({"chat_template": "{{ x }}"}, "chat_template", "cannot be set"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ">= -1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content",
            "image",
        ),
    ],
)
def test_invalid_fields_of_a_chat(given: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse({"messages": [USER], **given})
    assert caught.value.field == field


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("kind", ["regex", "json_object"])
def test_an_empty_response_format_is_named(kind: str, chat: bool) -> None:
    with pytest.raises(InvalidRequest, match="must not be empty") as caught:
        parse({"response_format": {"type": kind, "value": ""}} | TEXT[chat], chat=chat)
    assert caught.value.field == "response_format"


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"guided_json": {}}, "guided_json"),
        ({"response_format": {"type": "text"}, "guided_json": {}}, "guided_json"),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"json_object": False}, "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "structured_outputs"),
        ({}, "structured_outputs"),
    ],
)
def test_an_engine_error_names_the_field_that_constrains_the_answer(
    given: dict[str, Any], field: str, chat: bool
) -> None:
    assert parse(given | TEXT[chat], chat=chat).alias("structured_outputs") == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"tools": [TOOL], "tool_choice": "f"}, "tools"),
        ({"functions": [TOOL["function"]], "function_call": {"name": "f"}}, "functions"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "none"}, "response_format"),
        ({"functions": [TOOL["function"]]}, "response_format"),
    ],
)
def test_an_engine_error_names_the_tools_if_one_must_be_called(given: dict[str, Any], field: str) -> None:
    parsed = parse({"messages": [USER], "response_format": {"type": "json_object"}, **given})
    assert parsed.alias("structured_outputs") == field


SOUNDS: list[Any] = [
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "text", "text": "or"},
    {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
]


def test_sounds_for_a_model_that_hears() -> None:
    hearing = ChatDialect(lambda: facts(takes_sounds=True), budget=BUDGET)
    body = {"messages": [USER, {"role": "user", "content": SOUNDS}]}
    prompt = prompt_of(hearing.parse(Payload(data=json.dumps(body).encode(), request_id="r")))
    assert [(sound.url, sound.field) for sound in prompt.sounds] == [
        ("data:;base64,AAAA", "messages[1].content[0].input_audio"),
        ("https://example.com/a.wav", "messages[1].content[2].audio_url"),
    ]
    assert prompt.messages[1]["content"] == [{"type": "audio"}, {"type": "text", "text": "or"}, {"type": "audio"}]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    body = {"messages": [{"role": "user", "content": [SOUNDS[0], image]}]}
    with pytest.raises(UnsupportedFeature) as caught:
        hearing.parse(Payload(data=json.dumps(body).encode(), request_id="r"))
    assert caught.value.field == "messages[0].content"


@pytest.mark.parametrize("kind", ["input_audio", "audio_url", "video_url", "file"])
def test_parts_that_the_model_does_not_take_are_not_supported(kind: str) -> None:
    part = {"type": kind, kind: {"data": "AAAA", "format": "wav", "url": "data:,"}}
    with pytest.raises(UnsupportedFeature) as caught:
        parse({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]})
    assert caught.value.field == "messages[0].content[1]"
    assert kind in caught.value.message


def test_required_call_is_constrained_to_the_tools() -> None:
    first = {"$defs": {"P": {"type": "string"}}, "type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}}
    second = {"definitions": {"P": {"type": "number"}}, "properties": {"p": {"$ref": "#/definitions/P"}}}
    tools = [{"function": {"name": name, "parameters": schema}} for name, schema in (("f", first), ("g", second))]
    tools.append({"function": {"name": "h"}})
    parsed = parse({"messages": [USER], "tools": tools, "tool_choice": "required", "parallel_tool_calls": False})
    wanted = parsed.request.sampling_params.structured_outputs
    assert wanted is not None
    schema = json.loads(wanted.json or "")
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    calls = schema["items"]["anyOf"]
    assert [call["properties"]["name"]["const"] for call in calls] == ["f", "g", "h"]
    arguments = [schema["$defs"][call["properties"]["arguments"]["$ref"].rpartition("/")[2]] for call in calls]
    assert arguments == [
        first | {"properties": {"p": {"$ref": "#/$defs/0/$defs/P"}}},
        second | {"properties": {"p": {"$ref": "#/$defs/1/definitions/P"}}},
        {"type": "object", "properties": {}, "additionalProperties": False},
    ]


@pytest.mark.parametrize("message", [{"role": "tool", "tool_call_id": "c1"}, {"role": "function", "name": "f"}])
def test_texts_of_a_tools_result_are_on_lines_of_their_own(message: dict[str, Any]) -> None:
    content = [{"type": "text", "text": text} for text in ("4", "2", "")]
    chat = prompt_of(parse({"messages": [USER, message | {"content": content}]}))
    assert chat.messages[1]["content"] == "4\n2\n"


def test_text_beside_an_image_in_a_tools_result_stays_as_it_is() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    message = msgspec.convert({"role": "tool", "tool_call_id": "c1", "content": content}, Message)
    given = message.with_media("messages[0]", takes_images=True, takes_sounds=False)
    assert given["content"] == [{"type": "text", "text": "a"}, {"type": "image"}]


def test_messages_are_passed_to_the_template_unchanged() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é"]}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    assert prompt_of(parse({"messages": messages})).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": "ab"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call | {"function": {"name": "f", "arguments": {"a": [1, "é"]}}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


@pytest.mark.parametrize("arguments", ['{"a": "Par', "", "?", "[1]", "7", "null", None, [1]])
def test_arguments_that_are_no_object_are_an_empty_one(arguments: Any) -> None:
    """Templates read their members: an error would refuse every later turn of the conversation."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call, {"function": {"name": "g"}}]}
    chat = prompt_of(parse({"messages": [USER, said, {"role": "tool", "tool_call_id": "c1", "content": "no JSON"}]}))
    assert chat.messages[1]["tool_calls"] == [
        call | {"function": {"name": "f", "arguments": {}}},
        {"function": {"name": "g", "arguments": {}}},
    ]


def test_an_empty_list_of_calls_is_absent() -> None:
    """Llama 3's template takes any message with `tool_calls` for one that makes calls, and refuses other numbers than 1."""
    said = {"role": "assistant", "content": "Hello.", "tool_calls": []}
    chat = prompt_of(parse({"messages": [USER, said, USER]}))
    assert chat.messages[1] == {"role": "assistant", "content": "Hello."}
    assert prompt_of(parse({"messages": [USER, said]})).continue_final_message
    with pytest.raises(InvalidRequest, match="neither content nor tool_calls"):
        parse({"messages": [USER, said | {"content": None}]})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
            {"reasoning_effort": "low", "enable_thinking": False, "x": 1},
        ),
        ({"guideline": "x"}, {"guideline": "x"}),
    ],
)
def test_variables_of_the_template(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prompt_of(parse({"messages": [USER], **given})).template_kwargs == expected


@pytest.mark.parametrize(
    ("given", "opens", "continues"),
    [
        ({}, True, False),
        ({"messages": [USER, {"role": "assistant", "content": "Sure"}]}, False, True),
        ({"messages": [USER, {"role": "assistant", "content": "x"}], "add_generation_prompt": True}, True, False),
        ({"messages": [USER, {"role": "assistant", "content": "x"}], "continue_final_message": False}, True, False),
        ({"add_generation_prompt": False}, False, False),
    ],
)
def test_which_role_speaks_next(given: dict[str, Any], opens: bool, continues: bool) -> None:
    prompt = prompt_of(parse({"messages": [USER], **given}))
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (opens, continues)


@pytest.mark.parametrize("name", [None, "", "tgi", "gpt-4", "loud"])
def test_model_field_is_ignored_unless_it_names_an_adapter(name: str | None) -> None:
    parsed = parse({"messages": [USER], "model": name})
    assert [prompt.adapter for prompt in parsed.request.prompts] == ["loud" if name == "loud" else None]
    formatter = parsed.formatter(parsed.request, rendered())
    assert isinstance(formatter, ChatFormatter)
    assert formatter.options.model == (name if name in ("gpt-4", "loud") else "served")


def test_ignored_fields_are_reported() -> None:
    body = {"messages": [USER], "user": "u", "metadata": {"a": "b"}, "store": True, "verbosity": "low"}
    assert parse(body).request.ignored_parameters == ("verbosity",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": "a"}, ("a",)),
        ({"prompt": ["a", "b"]}, ("a", "b")),
        ({"prompt": [1, 2]}, ((1, 2),)),
        ({"prompt": [[1], [2, 3]]}, ((1,), (2, 3))),
        ({"prompt": ["a", [2]]}, ("a", (2,))),
    ],
)
def test_prompts(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert parse(given, chat=False).request.prompts == tuple(map(Prompt, expected))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_tokens": 16}),
        ({"max_tokens": 3, "n": 2, "best_of": 4}, {"max_tokens": 3, "n": 4, "logprobs": 0}),
        ({"logprobs": 5}, {"max_tokens": 16, "logprobs": 5}),
        ({"logprobs": 1, "echo": True}, {"max_tokens": 16, "logprobs": 1, "prompt_logprobs": 1}),
        ({"max_tokens": 0, "echo": True}, {"max_tokens": 1}),
    ],
)
def test_fields_of_a_completion(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse({"prompt": "a", **given}, chat=False).request.sampling_params == SamplingParams(**expected)


def test_a_suffix_is_what_follows_the_text() -> None:
    request = parse_infill({"prompt": ["a", "b"], "suffix": "c", "stop_token_ids": [3]}).request
    filled = [f"<|fim_prefix|>{text}<|fim_suffix|>c<|fim_middle|>" for text in "ab"]
    assert [prompt.content for prompt in request.prompts] == filled
    assert request.sampling_params.stop_token_ids == (3, 7)
    assert parse_infill({"prompt": "a", "suffix": "c", "ignore_eos": True}).request.sampling_params.stop_token_ids == ()
    assert parse_infill({"prompt": "a", "suffix": ""}).request.prompts == (Prompt("a"),)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"messages": [USER]}, 95),
        ({"messages": [USER], "max_tokens": 2}, 95),
        ({"messages": [USER], "max_completion_tokens": 10}, 89),
        ({"messages": [USER], "max_tokens": 100}, 95),
        ({"prompt": "a"}, 83),
        ({"prompt": "a", "max_tokens": 10}, 89),
    ],
)
def test_minus_one_keeps_what_leaves_room_for_the_answer(given: dict[str, Any], kept: int) -> None:
    """And for one token more, as in vLLM."""
    loaded = facts(max_model_len=100, max_input_len=95)
    kind = ChatDialect if "messages" in given else CompletionsDialect
    data = json.dumps({"truncate_prompt_tokens": -1, **given}).encode()
    parsed = kind(lambda: loaded, budget=BUDGET).parse(Payload(data=data, request_id="r"))
    assert parsed.request.truncate == kept


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"prompt": [1, 2]}, "needs prompts of text"),
        ({"echo": True}, "cannot be combined"),
        ({"truncate_prompt_tokens": 5}, "cannot be combined"),
        ({"prompt": ["a"] * 100, "suffix": "c" * (BUDGET.max_text_bytes // 50)}, "for each of 100 texts"),
    ],
)
def test_what_a_suffix_cannot_be_combined_with(given: dict[str, Any], cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause) as caught:
        parse_infill({"prompt": "a", "suffix": "c", **given})
    assert caught.value.field == "suffix"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_invalid_fields_of_a_completion(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"prompt": "a", **given}, chat=False)
    assert caught.value.field == field


@pytest.mark.parametrize("chat", [True, False])
def test_sagemakers_streaming_api_streams(chat: bool) -> None:
    body: dict[str, Any] = {"messages": [USER], "prompt": "a"}
    for given, api, expected in ((None, True, True), (None, False, False), (False, True, False), (True, False, True)):
        parsed = parse(body | {"stream": given}, chat=chat, stream=api)
        assert parsed.request.stream is expected
        assert parsed.formatter(parsed.request, rendered()).streams is expected


def test_null_fields_are_absent() -> None:
    given = {"messages": [USER], "chat_template": None, "unheard_of": None, "top_logprobs": 0, "logprobs": False}
    assert parse(given).request.ignored_parameters == ()


def test_priority_out_of_range() -> None:
    with pytest.raises(InvalidRequest, match="priority: must be from"):
        parse({"messages": [USER], "priority": 2**70})


def test_refusal_in_the_history_is_rendered_as_text() -> None:
    prompt = prompt_of(parse({"messages": [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER]}))
    assert prompt.messages[1] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize("choice", ["required", "f", {"type": "function", "function": {"name": "f"}}])
def test_a_tool_that_must_be_called_goes_before_a_format(choice: object) -> None:
    """instructor sends both."""
    asked = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
    both = parse(asked | {"response_format": {"type": "json_object"}})
    assert both.request.sampling_params == parse(asked).request.sampling_params


@pytest.mark.parametrize("given", [{"stream_options": {}}, {"stream_options": None}])
def test_no_options_of_a_stream(given: dict[str, Any]) -> None:
    assert not parse({"messages": [USER]} | given).request.stream


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "seed", "stop_token_ids"])
def test_whole_numbers_may_have_a_point(name: str) -> None:
    """As for vLLM's and LMI's pydantic models. Others of the body keep their value."""
    value: object = [4.0] if name == "stop_token_ids" else 4.0
    body = {"messages": [USER], "temperature": 0.5, "metadata": {"a": "4.0"}, name: value}
    assert getattr(parse(body).request.sampling_params, name) in (4, (4,))
    wrong = [4.5] if name == "stop_token_ids" else 4.5
    with pytest.raises(InvalidRequest, match="got `float`") as caught:
        parse(body | {name: wrong})
    assert (caught.value.field or "").startswith(name)


def test_a_field_behind_a_whole_number_is_named() -> None:
    with pytest.raises(InvalidRequest, match="temperature: Expected"):
        parse({"messages": [USER], "max_tokens": 4.0, "temperature": "x"})


def test_response_format_is_not_a_tool_call() -> None:
    """If tools are optional and a response format is set, the answer has that format."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "f"}}
    parsed = parse({"messages": [USER], "tools": [tool], "response_format": schema})
    assert parsed.request.sampling_params.structured_outputs is not None
    formatter = parsed.formatter(parsed.request, rendered())
    text = '{"name": "f", "arguments": {}}'
    token = Token(1, text, data=text.encode())
    answer = json.loads(written(formatter, TextDelta(tokens=(token,), text=text, finish_reason=FinishReason.EOS_TOKEN)))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text}


# Errors


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("no", field="n"), 400, "invalid_request_error"),
        (UnsupportedFeature("no"), 400, "invalid_request_error"),
        (PayloadTooLarge("no"), 413, "invalid_request_error"),
        (UnsupportedMediaType("no"), 415, "invalid_request_error"),
        (ModelNotFound("no"), 404, "invalid_request_error"),
        (QueueFull("no"), 429, "rate_limit_error"),
        (EngineNotReady("no"), 503, "server_error"),
        (DeadlineExceeded("no"), 504, "server_error"),
        (RequestFailed("no"), 500, "server_error"),
        (EngineDead("no"), 500, "server_error"),
    ],
)
def test_errors(error: LMIError, status: int, kind: str) -> None:
    answer = dialect().error(error)
    assert answer.status == status
    body = json.loads(answer.body)["error"]
    code = "model_not_found" if isinstance(error, ModelNotFound) else None
    assert body == {"message": str(error), "type": kind, "param": getattr(error, "field", None), "code": code}


def test_prompt_that_is_too_long() -> None:
    parsed = parse({"messages": [USER]})
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 8 tokens") as caught:
        parsed.check_length(parsed.request, 0, 8, capabilities(max_model_len=8))
    parsed.check_length(parsed.request, 0, 7, capabilities(max_model_len=8))
    assert json.loads(dialect().error(caught.value).body)["error"]["code"] == "context_length_exceeded"
