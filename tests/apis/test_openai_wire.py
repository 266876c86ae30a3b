"""The bytes that OpenAI's formatters write, and how OpenAI's bodies are parsed. No server is needed."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from capabilities import capabilities, facts
from formatting import written
from prompts import rendered
from server_sent_events import json_chunks

from formatters.base import Formatter
from formatters.openai.base import SYSTEM_FINGERPRINT
from formatters.openai.chat import (
    ChatFormatter,
    ChatJsonFormatter,
    ChatJsonLinesFormatter,
    ChatOptions,
    ChatSseFormatter,
)
from formatters.openai.completions import CompletionJsonFormatter, CompletionOptions, CompletionSseFormatter
from formatters.openai.errors import error_document
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect
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
from lmi_handlers.core.request import ChatPrompt, GenerationRequest, Prompt, RenderedPrompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.output_parsers.message import NamedCallParser
from lmi_handlers.text.output_parsers.tool_calls import CallListParser

BUDGET = Budget.of(ServingProperties())

HELLO = Token(1, "Hel", -0.25, data=b"Hel")
LO = Token(2, "lo", -1.5, top=(Token(3, "p", -0.5, data=b"p"), Token(2, "lo", -1.5, data=b"lo")), data=b"lo")
HALF = Token(4, "", -2.0, data=b"\xc3")
WHOLE = Token(5, "é", -float("inf"), data=b"\xa9")
END = Token(9, "</s>", -0.125, special=True, data=b"</s>")


def request(n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompts=(Prompt("Say: "),), sampling_params=SamplingParams(n=n))


def delta(*tokens: Token, reason: FinishReason | None = None, index: int = 0, **fields: Any) -> TextDelta:
    text = "".join(token.text for token in tokens if not token.special)
    return TextDelta(index=index, tokens=tokens, text=text, finish_reason=reason, **fields)


STOP = (delta(HELLO), delta(LO, END, reason=FinishReason.EOS_TOKEN))
HEAD = (
    '{"id":"chatcmpl-r","object":"chat.completion%s","created":7,"model":"m",'
    f'"system_fingerprint":"{SYSTEM_FINGERPRINT}","choices":'
)


def chat(kind: type[ChatFormatter], n: int = 1, **options: Any) -> ChatFormatter:
    return kind(request(n), rendered(10), options=ChatOptions(model="m", created=7, **options))


def test_chat_document() -> None:
    assert written(chat(ChatJsonFormatter), *STOP) == (
        HEAD
        % ""
        + '[{"index":0,"message":{"role":"assistant","content":"Hello"},"logprobs":null,"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}}'
    )


def test_chat_stream() -> None:
    head = HEAD % ".chunk"
    assert (
        written(chat(ChatSseFormatter), *STOP)
        == "".join(
            f'data: {head}[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}\n\n'
            for delta, reason in (
                ('{"role":"assistant","content":""}', "null"),
                ('{"content":"Hel"}', "null"),
                ('{"content":"lo"}', "null"),
                ("{}", '"stop"'),
            )
        )
        + "data: [DONE]\n\n"
    )


def test_chat_usage_in_a_stream() -> None:
    usage = '{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}'
    text = written(chat(ChatSseFormatter, include_usage=True), *STOP)
    assert text.endswith(f'data: {HEAD % ".chunk"}[],"usage":{usage}}}\n\ndata: [DONE]\n\n')
    counts = [
        chunk["usage"]["completion_tokens"]
        for chunk in json_chunks(written(chat(ChatSseFormatter, continuous_usage=True), *STOP))
    ]
    assert counts == [0, 1, 3, 3]


def test_chat_lines() -> None:
    *lines, rest = written(chat(ChatJsonLinesFormatter), *STOP).split("\n")
    assert rest == ""
    assert [json.loads(line)["choices"][0]["delta"] for line in lines] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert chat(ChatJsonLinesFormatter).error(QueueFull("full")) == error_document(QueueFull("full")) + b"\n"


def test_chat_logprobs() -> None:
    deltas = (delta(LO, HALF), delta(WHOLE, reason=FinishReason.LENGTH))
    p = '"top_logprobs":[]}'
    content = (
        '[{"token":"lo","logprob":-1.5,"bytes":[108,111],"top_logprobs":['
        '{"token":"p","logprob":-0.5,"bytes":[112]},{"token":"lo","logprob":-1.5,"bytes":[108,111]}]},'
        f'{{"token":"","logprob":-2.0,"bytes":[195],{p},{{"token":"é","logprob":-9999.0,"bytes":[169],{p}]'
    )
    document = written(chat(ChatJsonFormatter, logprobs=True), *deltas)
    assert f'"logprobs":{{"content":{content}}},"finish_reason":"length"' in document
    chunks = json_chunks(written(chat(ChatSseFormatter, logprobs=True), *deltas))
    streamed = [item for chunk in chunks if (probs := chunk["choices"][0]["logprobs"]) for item in probs["content"]]
    assert streamed == json.loads(content)
    assert chunks[-1]["choices"][0]["logprobs"] is None


def test_choices_of_a_chat_are_kept_apart() -> None:
    parts = (
        delta(HELLO, index=1),
        delta(LO, index=0, reason=FinishReason.LENGTH),
        delta(END, index=1, reason=FinishReason.STOP_SEQUENCE),
    )
    document = json.loads(written(chat(ChatJsonFormatter, n=2), *parts))
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in document["choices"]] == [
        (0, "lo", "length"),
        (1, "Hel", "stop"),
    ]
    chunks = [chunk["choices"][0] for chunk in json_chunks(written(chat(ChatSseFormatter, n=2), *parts))]
    assert [(c["index"], c["delta"].get("role"), c["finish_reason"]) for c in chunks] == [
        (1, "assistant", None),
        (1, None, None),
        (0, "assistant", None),
        (0, None, None),
        (0, None, "length"),
        (1, None, "stop"),
    ]


def pieces(text: str, size: int) -> list[TextDelta]:
    cut = [text[i : i + size] for i in range(0, len(text), size)]
    return [
        delta(Token(1, piece), reason=FinishReason.EOS_TOKEN if place == len(cut) - 1 else None)
        for place, piece in enumerate(cut)
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_tool_calls(size: int) -> None:
    text = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    parts = pieces(text, size)
    choice = json.loads(written(chat(ChatJsonFormatter, parser=CallListParser), *parts))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [(c["type"], c["function"]) for c in calls] == [
        ("function", {"name": "f", "arguments": '{"a": 1}'}),
        ("function", {"name": "g", "arguments": "{}"}),
    ]
    assert len({c["id"] for c in calls}) == 2
    stream = written(chat(ChatSseFormatter, parser=CallListParser), *parts)
    chunks = [chunk["choices"][0] for chunk in json_chunks(stream)]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert "content" not in chunks[1]["delta"]
    joined: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls", ()):
            begun = joined.setdefault(call["index"], {"name": call["function"].get("name", ""), "arguments": ""})
            assert ("id" in call) == ("name" in call["function"])
            begun["arguments"] += call["function"]["arguments"]
    assert list(joined.values()) == [c["function"] for c in calls]


def test_finish_reason_of_an_incomplete_tool_call_is_length() -> None:
    part = delta(Token(1, '{"a": '), reason=FinishReason.LENGTH)
    formatter = chat(ChatJsonFormatter, parser=lambda: NamedCallParser("f"))
    choice = json.loads(written(formatter, part))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": '}


# Text completions


def completion(kind: type[Formatter], *prompts: str, samples: int = 1, **options: Any) -> Formatter:
    made = CompletionOptions(model="m", created=7, **options)
    return kind(request(samples), tuple(map(RenderedPrompt, prompts or ("Say: ",), itertools.count(2))), options=made)  # type: ignore[call-arg]


def test_completion_document() -> None:
    assert written(completion(CompletionJsonFormatter), *STOP) == (
        f'{{"id":"cmpl-r","object":"text_completion","created":7,"model":"m","system_fingerprint":"{SYSTEM_FINGERPRINT}",'
        '"choices":[{"index":0,"text":"Hello","logprobs":null,"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}'
    )


def test_completion_stream() -> None:
    chunks = json_chunks(written(completion(CompletionSseFormatter, include_usage=True), *STOP))
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "lo", "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk["usage"] and chunk["usage"]["total_tokens"] for chunk in chunks] == [None, None, 5]


PROMPT = (Token(6, "Say", None), Token(7, ": ", -3.0, top=(Token(8, "!", -0.1),)))


@pytest.mark.parametrize("streams", [False, True])
def test_echo_with_logprobs(streams: bool) -> None:
    kind = CompletionSseFormatter if streams else CompletionJsonFormatter
    parts = (delta(HELLO, prompt_tokens=PROMPT), delta(LO, reason=FinishReason.LENGTH))
    text = written(completion(kind, echo=True, logprobs=1), *parts)
    records = json_chunks(text) if streams else [json.loads(text)]
    choices = [record["choices"][0] for record in records]
    assert "".join(choice["text"] for choice in choices) == "Say: Hello"
    joined = {
        name: [item for choice in choices for item in choice["logprobs"][name]] for name in choices[0]["logprobs"]
    }
    assert joined == {
        "text_offset": [0, 3, 5, 8],
        "token_logprobs": [None, -3.0, -0.25, -1.5],
        "tokens": ["Say", ": ", "Hel", "lo"],
        "top_logprobs": [None, {"!": -0.1, ": ": -3.0}, {"Hel": -0.25}, {"p": -0.5, "lo": -1.5}],
    }


def test_echo_of_only_the_prompt() -> None:
    parts = (delta(HELLO, reason=FinishReason.LENGTH, prompt_tokens=PROMPT),)
    answer = json.loads(written(completion(CompletionJsonFormatter, echo=True, prompt_only=True, logprobs=0), *parts))
    assert (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["tokens"]) == ("Say: ", ["Say", ": "])
    assert answer["usage"]["completion_tokens"] == 0


def test_best_of_returns_the_best_answers_to_each_prompt() -> None:
    formatter = completion(CompletionJsonFormatter, "a", "b", samples=3, n=2)
    tokens = [Token(i, str(i), probability) for i, probability in enumerate((-3.0, -1.0, -2.0, -1.0, -2.0, -3.0))]
    parts = [delta(token, index=i, reason=FinishReason.LENGTH) for i, token in enumerate(tokens)]
    answer = json.loads(written(formatter, *parts))
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "1"), (1, "2"), (2, "3"), (3, "4")]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


# Errors


def dialect() -> ChatDialect:
    return ChatDialect(lambda: facts("served", "{{ tools }}", adapters=("loud",)), budget=BUDGET)


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


# Bodies

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}


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
        ({"tools": [TOOL, TOOL]}, "tools", "one name"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type", "web_search"),
        ({"tools": [TOOL], "tool_choice": "g"}, "tool_choice", "none of the tools"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "combined",
        ),
        ({"chat_template": "{{ x }}"}, "chat_template", "server's"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", ">= 1"),
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


def test_response_format_is_not_a_tool_call() -> None:
    """If tools are optional and a response format is set, the answer has that format."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "f"}}
    parsed = parse({"messages": [USER], "tools": [tool], "response_format": schema})
    assert parsed.request.sampling_params.structured_outputs is not None
    formatter = parsed.formatter(parsed.request, rendered())
    text = '{"name": "f", "arguments": {}}'
    token = Token(1, text, data=text.encode())
    answer = json.loads(written(formatter, delta(token, reason=FinishReason.EOS_TOKEN)))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_ids_of_tool_calls_suit_the_strictest_template() -> None:
    document = json.loads(
        written(
            chat(ChatJsonFormatter, parser=lambda: NamedCallParser("f")), delta(HELLO, reason=FinishReason.EOS_TOKEN)
        )
    )
    (call,) = document["choices"][0]["message"]["tool_calls"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", call["id"])


def test_token_cut_by_a_stop_string_is_listed_once_and_whole() -> None:
    cut = Token(2, "", -0.05, top=(Token(2, "6", -0.05, data=b"6"), Token(3, "7", -4.0, data=b"7")), data=b"6")
    document = json.loads(
        written(chat(ChatJsonFormatter, logprobs=True), delta(cut, reason=FinishReason.STOP_SEQUENCE))
    )
    assert document["choices"][0]["logprobs"]["content"][0]["token"] == "6"
