"""Reasoning in OpenAI's chat completions: documents, streams, which requests allow it, and answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import msgspec
import pytest
import requests
from capabilities import facts
from facts import raises, says
from openapi_documents import document
from prompts import rendered
from server_sent_events import json_chunks
from serving import Server, StartServer

from formatters.openai.base import SYSTEM_FINGERPRINT
from formatters.openai.chat import ChatFormatter, ChatJsonFormatter, ChatOptions, ChatSseFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.output_parsers.reasoning import REASONING_FORMATS
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS

BUDGET = Budget.of(ServingProperties())
PROMPT = "<|user|>What is <think>?<|assistant|>\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

# Documents and streams

HEAD = (
    '{"id":"chatcmpl-r","object":"chat.completion%s","created":7,"model":"m",'
    f'"system_fingerprint":"{SYSTEM_FINGERPRINT}","choices":'
)
PIECES = ("<think>", "Hm", ".", "</think>", "\n\n", "Four")


def render(kind: type[ChatFormatter], *pieces: str, prompt: str = PROMPT, **options: Any) -> str:
    request = GenerationRequest(request_id="r", prompts=(Prompt(prompt),), sampling_params=SamplingParams())
    options = {"model": "m", "created": 7, "reasoning": REASONING_FORMATS["deepseek_r1"], **options}
    formatter = kind(request, rendered(10, prompt), options=ChatOptions(**options))
    last = len(pieces) - 1
    deltas = [
        TextDelta(
            tokens=(Token(place, piece, -0.5, data=piece.encode()),),
            text=piece,
            finish_reason=FinishReason.LENGTH if place == last else None,
        )
        for place, piece in enumerate(pieces)
    ]
    return (b"".join(map(formatter.feed, deltas)) + formatter.finish()).decode()


@pytest.mark.parametrize(
    ("pieces", "message", "thought"),
    [
        (PIECES, '{"role":"assistant","content":"Four","reasoning_content":"Hm.","reasoning":"Hm."}', 3),
        (PIECES[:3], '{"role":"assistant","content":null,"reasoning_content":"Hm.","reasoning":"Hm."}', 3),
        (("Four",), '{"role":"assistant","content":"Four"}', 0),
        (("",), '{"role":"assistant","content":""}', 0),
    ],
)
def test_the_document_of_a_chat_with_reasoning(pieces: tuple[str, ...], message: str, thought: int) -> None:
    n = len(pieces)
    assert render(ChatJsonFormatter, *pieces) == (
        HEAD % "" + f'[{{"index":0,"message":{message},"logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{{"prompt_tokens":10,"completion_tokens":{n},"total_tokens":{10 + n},'
        f'"completion_tokens_details":{{"reasoning_tokens":{thought}}}}}}}'
    )


@pytest.mark.parametrize("pieces", [PIECES, PIECES[:3]])
def test_the_openapi_document_describes_reasoning(pieces: tuple[str, ...]) -> None:
    components = document()["components"]
    answers = [("ChatCompletionChunk", chunk) for chunk in json_chunks(render(ChatSseFormatter, *pieces))]
    answers.append(("ChatCompletion", json.loads(render(ChatJsonFormatter, *pieces))))
    for name, answer in answers:
        jsonschema.validate(answer, {"$ref": f"#/components/schemas/{name}", "components": components})
    for name in ("TextMessage", "ToolCallMessage", "ChatCompletionDelta"):
        for field in ("reasoning_content", "reasoning"):
            assert components["schemas"][name]["properties"][field] == {"type": "string"}


def test_a_document_with_reasoning_and_tool_calls() -> None:
    text = render(ChatJsonFormatter, "Hm.</think>", CALL, prompt=f"{PROMPT}<think>\n",
                   parser=lambda: TaggedCallParser(TOOL_FORMATS["hermes"], {}))  # fmt: skip
    message = json.loads(text)["choices"][0]["message"]
    assert text.startswith(
        HEAD % ""
        + '[{"index":0,"message":{"role":"assistant","content":null,"reasoning_content":"Hm.","reasoning":"Hm.",'
        + '"tool_calls":[{"id"'
    )
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_the_stream_of_a_chat_with_reasoning() -> None:
    head = HEAD % ".chunk"
    assert (
        render(ChatSseFormatter, *PIECES)
        == "".join(
            f'data: {head}[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}\n\n'
            for delta, reason in (
                ('{"role":"assistant","content":""}', "null"),
                ('{"reasoning_content":"Hm","reasoning":"Hm"}', "null"),
                ('{"reasoning_content":".","reasoning":"."}', "null"),
                ('{"content":"Four"}', "null"),
                ('{"content":""}', '"length"'),
            )
        )
        + "data: [DONE]\n\n"
    )


def test_the_usage_of_a_stream_counts_the_reasoning() -> None:
    text = render(ChatSseFormatter, *PIECES, include_usage=True, continuous_usage=True)
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in json_chunks(text)]
    assert counts == [0, 2, 3, 3, 3, 3]
    plain = render(ChatSseFormatter, *PIECES, include_usage=True, reasoning=None)
    assert "completion_tokens_details" not in json_chunks(plain)[-1]["usage"]


@pytest.mark.parametrize("include", [False, True])
def test_each_token_has_its_logprob_exactly_once_in_the_stream(include: bool) -> None:
    text = render(ChatSseFormatter, *PIECES, logprobs=True, include_reasoning=include)
    choices = [chunk["choices"][0] for chunk in json_chunks(text)]
    tokens = [token["token"] for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    assert tokens == list(PIECES)
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == ("Hm." if include else "")


# Requests

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ({}, True),
        ({"tools": [TOOL]}, True),
        ({"tools": [TOOL], "tool_choice": "none"}, True),
        ({"response_format": {"type": "text"}}, True),
        ({"tools": [TOOL], "tool_choice": "required"}, False),
        ({"tools": [TOOL], "tool_choice": "f"}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, False),
        ({"structured_outputs": {"regex": "a+"}}, False),
    ],
)
def test_reasoning_is_not_expected_if_a_grammar_constrains_the_answer(body: dict[str, Any], allowed: bool) -> None:
    dialect = ChatDialect(lambda: facts(chat_template="<think>"), budget=BUDGET, enable_reasoning=True)
    parsed = dialect.parse(Payload(data=json.dumps({"messages": [USER], **body}).encode(), request_id="r"))
    formatter = parsed.formatter(parsed.request, rendered(1, "<think>"))
    formatter.feed(TextDelta(text="Hm.", finish_reason=FinishReason.LENGTH))
    message = json.loads(formatter.finish())["choices"][0]["message"]
    assert message.get("reasoning_content") == ("Hm." if allowed else None)
    if allowed:  # [THINK] and similar marks are special tokens
        assert parsed.request.sampling_params.skip_special_tokens is False


@pytest.mark.parametrize(("enabled", "separated"), [(None, True), (True, True), (False, False)])
def test_harmony_is_on_by_default(enabled: bool | None, separated: bool) -> None:
    """Without the special tokens there would be nothing to split at, so a request cannot hide them."""
    template = "<|start|>assistant<|channel|>analysis<|message|> or <|channel|>commentary"
    dialect = ChatDialect(lambda: facts(chat_template=template), budget=BUDGET, enable_reasoning=enabled)
    body = {"messages": [USER], "tools": [TOOL], "skip_special_tokens": True}
    parsed = dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r"))
    assert parsed.request.sampling_params.skip_special_tokens is False
    formatter = parsed.formatter(parsed.request, rendered(1, "<|start|>assistant"))
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"
    formatter.feed(TextDelta(text=text, finish_reason=FinishReason.EOS_TOKEN))
    message = json.loads(formatter.finish())["choices"][0]["message"]
    assert [made["function"] for made in message["tool_calls"]] == [{"name": "f", "arguments": '{"a": 1}'}]
    assert (message.get("reasoning_content") == "Hm.") is separated
    assert (message["content"] is None) is separated


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_reasoning_of_earlier_messages_is_passed_to_the_template(name: str) -> None:
    message = msgspec.convert({"role": "assistant", name: "Hm."}, Message).with_links("messages[0]")
    assert (message["content"], message["reasoning_content"]) == ("", "Hm.")
    with raises(InvalidRequest, "content tool_calls"):
        msgspec.convert({"role": "assistant", name: ""}, Message).with_links("messages[0]")


# Over HTTP. The echo backend answers with the prompt, and the template renders only the last message.

DEFAULT_BUDGET = 100
TEMPLATE = "{{ messages[-1].content }}{% if thinking %}<think>\\n{% endif %}{% if tools %}{% endif %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Server]:
    properties = f"option.rolling_batch=echo\noption.chat_template={TEMPLATE}\noption.enable_reasoning=true\n"
    properties += f"option.thinking_token_budget={DEFAULT_BUDGET}\n"
    started = Server(tmp_path_factory.mktemp("reasoning") / "m", properties)
    yield started.wait_ready()
    started.stop()


def chat(server: Server, text: str, **body: Any) -> requests.Response:
    answer = server.invoke({"messages": [{"role": "user", "content": text}], **body}, path="/v1/chat/completions")
    assert answer.status_code == 200, answer.text
    return answer


def chat_message(server: Server, text: str, **body: Any) -> tuple[dict[str, Any], str]:
    """Return the message without the ids of its calls, and the finish reason. Checks that the stream has the same."""
    (choice,) = chat(server, text, **body).json()["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.pop("tool_calls", ())]
    streamed = {"role": "", "content": "", "reasoning_content": "", "reasoning": ""}
    functions: list[dict[str, str]] = []
    stream = chat(server, text, stream=True, **body).content.decode()
    parts = [chunk["choices"][0] for chunk in json_chunks(stream)]
    for part in parts:
        for call in part["delta"].pop("tool_calls", ()):
            if "id" in call:
                functions.append({"name": call["function"]["name"], "arguments": ""})
            functions[call["index"]]["arguments"] += call["function"]["arguments"]
        for key, value in part["delta"].items():
            streamed[key] += value
    assert functions == calls
    assert streamed == {"reasoning_content": "", "reasoning": "", **message, "content": message["content"] or ""}
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    return message | ({"calls": calls} if calls else {}), choice["finish_reason"]


def assistant(content: str | None, reasoning: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {} if reasoning is None else {"reasoning_content": reasoning, "reasoning": reasoning}
    return {"role": "assistant", "content": content, **fields, **more}


def test_a_chat_returns_reasoning_and_answer(server: Server) -> None:
    text = "<think>\nIt is été.\n</think>\n\nFour."
    assert chat_message(server, text) == (assistant("Four.", "It is été."), "stop")
    assert chat_message(server, text, max_tokens=12) == (assistant(None, "It i"), "length")
    assert chat_message(server, "Four.") == (assistant("Four."), "stop")
    assert chat_message(server, text, include_reasoning=False) == (assistant("Four."), "stop")
    assert "x-lmi-ignored-parameters" not in chat(server, text, include_reasoning=False).headers


def test_the_prompt_may_start_the_reasoning(server: Server) -> None:
    options = {"chat_template_kwargs": {"thinking": True}}
    assert chat_message(server, "Hm.</think>Four.", max_tokens=16, **options) == (assistant("Four.", "Hm."), "length")
    assert chat_message(server, "Hm.", max_tokens=3, **options) == (assistant(None, "Hm."), "length")


def test_the_operator_sets_defaults_of_template_variables(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=echo\noption.chat_template={{ messages[-1].content }}{{ tone }}\n"
        'option.default_chat_template_kwargs={"tone": "!"}\n'
    )
    assert chat_message(server, "Hi") == (assistant("Hi!"), "stop")
    assert chat_message(server, "Hi", chat_template_kwargs={"tone": "?"}) == (assistant("Hi?"), "stop")
    body = {"messages": [USER], "return_token_strs": True}
    assert server.invoke(body, path="/tokenize").json()["token_strs"] == ["h", "i", "!"]


def test_tool_calls_after_the_reasoning(server: Server) -> None:
    text = f"<think>I call {CALL}.</think>\n\n{CALL}"
    calls = [{"name": "f", "arguments": '{"a": 1}'}]
    assert chat_message(server, text, tools=[TOOL]) == (assistant(None, f"I call {CALL}.", calls=calls), "tool_calls")


LONG = "x" * (DEFAULT_BUDGET + 20)


@pytest.mark.parametrize(
    ("text", "body", "reasoning", "content"),
    [
        ("<think>abcdef</think>Four.", {"thinking_token_budget": 4}, "abcd", "ef</think>Four."),
        ("<think>abcdef</think>Four.", {"thinking_token_budget": 0}, None, "abcdef</think>Four."),
        ("<think>abcdef</think>Four.", {"thinking_token_budget": 6}, "abcdef", "</think>Four."),
        ("<think>abcdef</think>Four.", {"thinking_token_budget": 2**62}, "abcdef", "Four."),
        ("<think>abcdef</think>Four.", {"thinking_token_budget": None}, "abcdef", "Four."),
        (f"<think>{LONG}</think>Four.", {}, LONG[20:], f"{LONG[:20]}</think>Four."),
        (f"<think>{LONG}</think>Four.", {"thinking_token_budget": -1}, LONG, "Four."),
        (f"<think>{LONG}</think>Four.", {"thinking_token_budget": 119}, LONG[1:], "x</think>Four."),
        (f"<think>{LONG}</think>Four.", {"include_reasoning": False}, None, f"{LONG[:20]}</think>Four."),
        ("Four.", {"thinking_token_budget": 0}, None, "Four."),
    ],
)
def test_a_cap_on_the_reasoning(
    server: Server, text: str, body: dict[str, Any], reasoning: str | None, content: str
) -> None:
    """The echo backend goes on with the prompt after the forced end."""
    assert chat_message(server, text, **body) == (assistant(content, reasoning), "stop")


def test_the_cap_counts_from_where_the_prompt_starts_the_reasoning(server: Server) -> None:
    body = {"chat_template_kwargs": {"thinking": True}, "thinking_token_budget": 4, "max_tokens": 13}
    assert chat_message(server, "abcdef", **body) == (assistant("de", "abc"), "length")  # after a line break


def test_the_cap_holds_for_each_sample_and_counts_as_tokens(server: Server) -> None:
    answer = chat(server, "<think>abcdef</think>Four.", thinking_token_budget=4, n=2, logprobs=True).json()
    assert [choice["message"] for choice in answer["choices"]] == [assistant("ef</think>Four.", "abcd")] * 2
    written = len("<think>abcd</think>ef</think>Four.") + 1  # and the end of the sequence
    assert answer["usage"]["completion_tokens"] == 2 * written
    tokens = [token["token"] for token in answer["choices"][1]["logprobs"]["content"]]
    assert "".join(tokens[:-1]) == "<think>abcd</think>ef</think>Four."


def test_the_cap_in_other_apis(server: Server) -> None:
    text, capped = "<think>abcdef</think>", "<think>abcd</think>ef"
    fields = {"thinking_token_budget": 4}
    body = {"inputs": text, "parameters": {"max_new_tokens": len(capped), **fields}}
    assert server.invoke(body).json() == {"generated_text": capped}
    answer = server.invoke({"prompt": text, "max_tokens": len(capped), **fields}, path="/v1/completions").json()
    assert answer["choices"][0]["text"] == capped
    answer = server.invoke({"input": text + "Four.", **fields}, path="/v1/responses").json()
    reasoning, message = answer["output"]
    assert (reasoning["content"][0]["text"], message["content"][0]["text"]) == ("abcd", "ef</think>Four.")
    long = {"role": "user", "content": f"<think>{'x' * 1030}</think>Four."}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    messages: dict[str, Any] = {"model": "m", "max_tokens": 1100, "messages": [long], "thinking": thinking}
    blocks = server.invoke(messages, path="/v1/messages").json()["content"]
    assert [block.get("thinking") or block["text"] for block in blocks] == ["x" * 1024, "xxxxxx</think>Four."]


@pytest.mark.parametrize("budget", [-2, True, 1.5, "5", [], 2**63, 10**30])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/invocations", {"inputs": "a", "parameters": {}}),
    ],
)
def test_wrong_budgets_are_refused(server: Server, path: str, body: dict[str, Any], budget: Any) -> None:
    field = {"thinking_token_budget": budget}
    answer = server.invoke({**body, "parameters": field} if "parameters" in body else {**body, **field}, path=path)
    assert 400 <= answer.status_code < 500
    assert "thinking_token_budget" in answer.text


def test_a_cap_needs_to_know_the_marks(echo_server: Server) -> None:
    body: dict[str, Any] = {"messages": [USER], "thinking_token_budget": 5}
    answer = echo_server.invoke(body, path="/v1/chat/completions")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")
    assert "set option.reasoning_parser" in answer.json()["error"]["message"]
    unlimited = echo_server.invoke(body | {"thinking_token_budget": -1}, path="/v1/chat/completions")
    assert unlimited.status_code == 200
    thinking = {"type": "enabled", "budget_tokens": 1024}
    agent = {"model": "m", "max_tokens": 2000, "messages": [USER], "thinking": thinking}
    assert echo_server.invoke(agent, path="/v1/messages").status_code == 200, "no thoughts are shown"


def test_other_dialects_return_the_reasoning_as_text(server: Server) -> None:
    text = "<think>Hm.</think>Four."
    assert server.invoke({"inputs": text, "parameters": {"max_new_tokens": 23}}).json() == {"generated_text": text}
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    (choice,) = server.invoke(body, path="/chat/completions").json()["choices"]
    assert choice["message"] == assistant(text)
    (choice,) = server.invoke({"messages": body["messages"]}).json()["choices"]
    assert choice["message"] == assistant("Four.", "Hm.")


def test_without_the_option_reasoning_stays_in_the_content(echo_server: Server) -> None:
    text = "<think>Hm.</think>Four."
    (choice,) = chat(echo_server, text, max_tokens=29).json()["choices"]
    assert choice["message"] == assistant(f"user: {text}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ("reasoning_parser=nonsense", "unknown option.reasoning_parser nonsense"),
        ("enable_reasoning=true", "option.enable_reasoning=true chat template"),
        ("thinking_token_budget=9", "option.thinking_token_budget model thoughts"),
    ],
)
def test_the_server_does_not_start_with_invalid_options(start_server: StartServer, option: str, cause: str) -> None:
    server = start_server(f"option.rolling_batch=echo\noption.{option}\n", ready=False)
    assert server.process.wait(120) == 1
    assert says(server.log, cause)
