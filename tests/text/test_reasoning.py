"""Thoughts before answers: every family whole, in pieces, broken off, before tool calls, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import msgspec
import pytest
import requests
from capabilities import facts
from hypothesis import given
from hypothesis import strategies as st
from openapi_documents import document
from serving import Server, StartServer

from formatters.openai.base import SYSTEM_FINGERPRINT
from formatters.openai.chat import ChatFormatter, ChatJsonFormatter, ChatOptions, ChatSseFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.output_parsers.message import MessageDelta, PlainParser
from lmi_handlers.text.output_parsers.reasoning import (
    REASONING_FORMATS,
    ReasoningParser,
    choose_reasoning_format,
    reasoning_format,
)
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS

BUDGET = Budget.of(ServingProperties())

PROMPT = "<|user|>What is <think>?<|assistant|>\n"
"""Of a model that begins its thoughts itself; what a user writes of them begins none."""

HARMONY = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parser(name: str = "qwen3", prompt: str = PROMPT) -> ReasoningParser:
    return ReasoningParser(reasoning_format(name), prompt, PlainParser())


def join(deltas: Iterable[MessageDelta]) -> MessageDelta:
    whole = MessageDelta()
    for delta in deltas:
        whole += delta
    return whole


def parse(reader: ReasoningParser, *pieces: str) -> tuple[str, str]:
    """The thoughts and the answer. No delta may have thoughts once there is some answer."""
    deltas = [*map(reader.feed, pieces), reader.finish()]
    answered = False
    for delta in deltas:
        assert not (answered and delta.reasoning)
        answered = answered or bool(delta.content)
    whole = join(deltas)
    return whole.reasoning, whole.content


GOLDEN = [
    ("qwen3", PROMPT, "<think>\nHm.\n\nSo?\n</think>\n\nFour.", ("Hm.\n\nSo?", "Four.")),
    ("qwen3", PROMPT, "<think></think>Four.", ("", "Four.")),
    ("qwen3", PROMPT, "<think>\n\n</think>\n\nFour.\n", ("", "Four.\n")),
    ("qwen3", PROMPT, "Four. <think>Hm.</think>", ("", "Four. <think>Hm.</think>")),
    ("qwen3", PROMPT, "\n Four.\n", ("", "\n Four.\n")),
    ("qwen3", PROMPT, " \n", ("", " \n")),
    ("qwen3", PROMPT, " <thin", ("", " <thin")),
    ("qwen3", PROMPT, "", ("", "")),
    ("qwen3", PROMPT, "<think>Hm. 1 </ 2 </thin", ("Hm. 1 </ 2 </thin", "")),
    ("qwen3", PROMPT, "<think>Hm. </think>", ("Hm.", "")),
    ("qwen3", PROMPT, "<think>a</think>b</think>c<think>d</think>", ("a", "b</think>c<think>d</think>")),
    # The prompt has begun the thoughts, or ended them
    ("deepseek_r1", f"{PROMPT}<think>\n", "Hm.\n</think>\n\nFour.", ("Hm.", "Four.")),
    ("deepseek_r1", f"{PROMPT}<think>", "<think>\nHm.</think>Four.", ("Hm.", "Four.")),
    ("deepseek_r1", f"{PROMPT}<think>\n", "\nHm, still", ("Hm, still", "")),
    ("deepseek_r1", f"{PROMPT}<think>\n", "</think>Four.", ("", "Four.")),
    ("qwen3", f"{PROMPT}<think>\n\n</think>\n\n", "Four.", ("", "Four.")),
    ("glm45", f"{PROMPT}<think></think>", "\nFour.", ("", "\nFour.")),
    ("mistral", PROMPT, "[THINK]Hm.[/THINK]Four.", ("Hm.", "Four.")),
    ("mistral", PROMPT, "<think>Hm.</think>Four.", ("Hm.", "Four.")),
    ("seed_oss", PROMPT, "<seed:think>Hm.</seed:think>Four.", ("Hm.", "Four.")),
    ("minimax_m3", PROMPT, "<mm:think>Hm.</mm:think>Four.", ("Hm.", "Four.")),
    ("plamo3", PROMPT, "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>Four.", ("Hm.", "Four.")),
    ("gemma4", PROMPT, "<|channel>thought\nHm.\n<channel|>Four.", ("Hm.", "Four.")),
    ("granite", PROMPT, "Here is my thought process: Here I am: Hm.\nHere is my response: Four.", ("Here I am: Hm.", "Four.")),
    ("granite", PROMPT, "Here's my thought process:\n\nHm.\n\nHere's my response:\n\nFour.", ("Hm.", "Four.")),
    ("granite", PROMPT, "Here's my number: Four.", ("", "Here's my number: Four.")),
    # Those that mark the answer too
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\n<answer>\nFour.\n</answer>", ("Hm.", "Four.")),
    ("hunyuan_a13b", f"{PROMPT}<think>\n\n</think>\n", "<answer>\nFour.\n</answer>", ("", "Four.")),
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\n<answer>\nFour. </ans", ("Hm.", "Four. </ans")),
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\nFour.", ("Hm.", "Four.")),
    ("ernie45", f"{PROMPT}<think>\n", "Hm.\n</think>\n\n<response>\nFour.\n</response>\n", ("Hm.", "Four.")),
    (
        "cohere_command3",
        PROMPT,
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Four.<|END_RESPONSE|>",
        ("Hm.", "Four."),
    ),
    ("openai_gptoss", "<|start|>assistant", f"{HARMONY}Hm.<|end|>{FINAL}Four.", ("Hm.", "Four.")),
    ("openai_gptoss", "<|start|>assistant", "<|channel|>final<|message|>Four.", ("", "Four.")),
    # A call instead of an answer is left to its own parser.
    ("openai_gptoss", "<|start|>assistant", f"{HARMONY}Hm.<|end|>{COMMENTARY}", ("Hm.", COMMENTARY)),
    ("openai_gptoss", "<|start|>assistant", f"{HARMONY}Hm.", ("Hm.", "")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "prompt", "text", "expected"), GOLDEN)
def test_what_a_model_writes(name: str, prompt: str, text: str, expected: tuple[str, str]) -> None:
    assert parse(parser(name, prompt), text) == expected
    assert parse(parser(name, prompt), *text) == expected


def test_thoughts_come_at_once_but_for_what_may_become_their_end() -> None:
    reader = parser()
    pieces = ("<thi", "nk>", "\n", "Hm", ", so", " ", "it is </", "b> ", "</think", ">\n", "\nFour", ". ", "")
    assert [reader.feed(piece) for piece in pieces] == [
        *[MessageDelta()] * 3,
        MessageDelta(reasoning="Hm"),
        MessageDelta(reasoning=", so"),
        MessageDelta(),
        MessageDelta(reasoning=" it is"),
        MessageDelta(reasoning=" </b>"),
        *[MessageDelta()] * 2,
        MessageDelta("Four"),
        MessageDelta(". "),
        MessageDelta(),
    ]
    assert reader.finish() == MessageDelta()


def test_what_calls_are_made_of_is_read_behind_thoughts_only() -> None:
    text = f"<think>I might write {CALL} now.</think>\n\nOne moment.\n{CALL}"
    for pieces in ((text,), tuple(text)):
        tools = TaggedCallParser(TOOL_FORMATS["hermes"], {"f": {}})
        reader = ReasoningParser(REASONING_FORMATS["deepseek_r1"], PROMPT, tools)
        whole = join([*map(reader.feed, pieces), reader.finish()])
        assert whole.reasoning == f"I might write {CALL} now."
        assert whole.content == "One moment."
        assert [(call.index, call.name) for call in whole.tool_calls if call.name] == [(0, "f")]
        assert "".join(call.arguments for call in whole.tool_calls) == '{"a": 1}'


# Any text

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MARKS = sorted(
    {
        mark
        for form in REASONING_FORMATS.values()
        for marks in (form.begins, form.ends, form.answer_begins, form.answer_ends)
        for mark in marks
    }
)
SOUP = st.lists(
    st.sampled_from([*MARKS, *(mark[:3] for mark in MARKS), " ", "\n", "Hm", "<", "Here"]), max_size=12
).map("".join)


def cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("name", REASONING_FORMATS)
@given(SOUP | st.text(), st.booleans(), st.data())
def test_any_text_in_any_pieces(name: str, text: str, begun: bool, data: st.DataObject) -> None:
    prompt = PROMPT + (REASONING_FORMATS[name].begins[0] + "\n" if begun else "")
    whole = parse(parser(name, prompt), text)
    assert parse(parser(name, prompt), *cut(text, data)) == whole
    assert parse(parser(name, prompt), *text) == whole
    if not begun and not text.lstrip().startswith(
        (*REASONING_FORMATS[name].begins, *REASONING_FORMATS[name].answer_begins)
    ):
        assert whole == ("", text)


@pytest.mark.parametrize("name", REASONING_FORMATS)
@given(WORDS, WORDS, st.booleans(), st.data())
def test_thoughts_and_answer_come_back(name: str, thoughts: str, answer: str, begun: bool, data: st.DataObject) -> None:
    form = REASONING_FORMATS[name]
    prompt = PROMPT + (form.begins[0] if begun else "")
    marks = [*form.begins, *form.ends, *form.answer_begins, *form.answer_ends]
    if any(mark in thoughts + answer for mark in marks):
        return
    around = [("", ""), *zip(form.answer_begins, form.answer_ends or ("",) * len(form.answer_begins), strict=True)]
    before, after = data.draw(st.sampled_from(around))
    text = f"{'' if begun else form.begins[0]}\n{thoughts}\n{form.ends[0]}\n\n{before}\n{answer}{after}"
    reasoning, content = parse(parser(name, prompt), *cut(text, data))
    assert reasoning == thoughts.strip()
    assert content.rstrip() == answer.strip()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["word ", " ", "</thin", "<", "Here is my "])
def test_long_thoughts_cost_linear_time(text: str) -> None:
    for name in ("deepseek_r1", "granite"):
        whole = text * (200_000 // len(text))
        pieces = (whole[start : start + 3] for start in range(0, len(whole), 3))
        assert parse(parser(name, REASONING_FORMATS[name].begins[0]), *pieces) == (whole.strip(), "")


# Which family


def test_names_of_vllm() -> None:
    assert {name: reasoning_format(name).name for name in ("qwen3", "glm45", "kimi_k2", "cohere_command4", "granite")} == {
        "qwen3": "deepseek_r1",
        "glm45": "deepseek_r1",
        "kimi_k2": "deepseek_r1",
        "cohere_command4": "cohere_command3",
        "granite": "granite",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"option.reasoning_parser 'nope'; known: .*deepseek_r1.*qwen3"):
        reasoning_format("nope")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|Assistant|><think>\\n' }}", "deepseek_r1"),
        ("{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}", "deepseek_r1"),
        ("{{ '<think>\n\n</think>\n' }} <answer>\n", "hunyuan_a13b"),
        ("[THINK]{{ thoughts }}[/THINK]", "mistral"),
        ("Write your thoughts after 'Here is my thought process:'", "granite"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "openai_gptoss"),
        ("<|START_THINKING|>", "cohere_command3"),
        ("<seed:think>", "seed_oss"),
    ],
)
def test_a_template_tells_the_format(template: str, name: str) -> None:
    chosen = choose_reasoning_format(template, None, enabled=True)
    assert chosen is not None
    assert chosen.name == name
    assert choose_reasoning_format(template, None, enabled=None) is None
    assert choose_reasoning_format(template, None, enabled=False) is None


def test_options() -> None:
    assert choose_reasoning_format("<think>", "granite", enabled=None) is REASONING_FORMATS["granite"]
    assert choose_reasoning_format("<think>", "granite", enabled=True) is REASONING_FORMATS["granite"]
    assert choose_reasoning_format("<think>", "granite", enabled=False) is None
    with pytest.raises(ConfigError, match=r"set option.reasoning_parser \(.*qwen3"):
        choose_reasoning_format("{{ messages }}", None, enabled=True)


# Bytes

HEAD = (
    '{"id":"chatcmpl-r","object":"chat.completion%s","created":7,"model":"m",'
    f'"system_fingerprint":"{SYSTEM_FINGERPRINT}","choices":'
)
PIECES = ("<think>", "Hm", ".", "</think>", "\n\n", "Four")


def written(kind: type[ChatFormatter], *pieces: str, prompt: str = PROMPT, **options: Any) -> str:
    request = GenerationRequest(request_id="r", prompts=(prompt,), sampling_params=SamplingParams())
    formatter = kind(
        request, (10,), options=ChatOptions(model="m", created=7, reasoning=REASONING_FORMATS["deepseek_r1"], **options)
    )
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
    ("pieces", "message"),
    [
        (PIECES, '{"role":"assistant","content":"Four","reasoning_content":"Hm."}'),
        (PIECES[:3], '{"role":"assistant","content":null,"reasoning_content":"Hm."}'),
        (("Four",), '{"role":"assistant","content":"Four"}'),
        (("",), '{"role":"assistant","content":""}'),
    ],
)
def test_document(pieces: tuple[str, ...], message: str) -> None:
    n = len(pieces)
    assert written(ChatJsonFormatter, *pieces) == (
        HEAD % "" + f'[{{"index":0,"message":{message},"logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{{"prompt_tokens":10,"completion_tokens":{n},"total_tokens":{10 + n}}}}}'
    )


@pytest.mark.parametrize("pieces", [PIECES, PIECES[:3]])
def test_the_openapi_document_knows_it(pieces: tuple[str, ...]) -> None:
    components = document()["components"]
    records = written(ChatSseFormatter, *pieces).split("\n\n")[:-2]
    answers = [("ChatCompletionChunk", json.loads(record.removeprefix("data: "))) for record in records]
    answers.append(("ChatCompletion", json.loads(written(ChatJsonFormatter, *pieces))))
    for name, answer in answers:
        jsonschema.validate(answer, {"$ref": f"#/components/schemas/{name}", "components": components})
    for name in ("TextMessage", "ToolCallMessage", "ChatCompletionDelta"):
        assert components["schemas"][name]["properties"]["reasoning_content"] == {"type": "string"}


def test_document_with_calls() -> None:
    text = written(ChatJsonFormatter, "Hm.</think>", CALL, prompt=f"{PROMPT}<think>\n",
                   parser=lambda: TaggedCallParser(TOOL_FORMATS["hermes"], {}))  # fmt: skip
    message = json.loads(text)["choices"][0]["message"]
    assert text.startswith(
        HEAD % ""
        + '[{"index":0,"message":{"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[{"id"'
    )
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_stream() -> None:
    head = HEAD % ".chunk"
    assert (
        written(ChatSseFormatter, *PIECES)
        == "".join(
            f'data: {head}[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}\n\n'
            for delta, reason in (
                ('{"role":"assistant","content":""}', "null"),
                ('{"reasoning_content":"Hm"}', "null"),
                ('{"reasoning_content":"."}', "null"),
                ('{"content":"Four"}', "null"),
                ("{}", '"length"'),
            )
        )
        + "data: [DONE]\n\n"
    )


@pytest.mark.parametrize("include", [False, True])
def test_every_token_of_a_stream_has_its_logprob_once(include: bool) -> None:
    text = written(ChatSseFormatter, *PIECES, logprobs=True, include_reasoning=include)
    choices = [json.loads(record.removeprefix("data: "))["choices"][0] for record in text.split("\n\n")[:-2]]
    tokens = [token["token"] for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    assert tokens == list(PIECES)
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == ("Hm." if include else "")


# Bodies

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}


@pytest.mark.parametrize(
    ("body", "thinks"),
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
def test_a_grammar_leaves_no_room_for_thoughts(body: dict[str, Any], thinks: bool) -> None:
    dialect = ChatDialect(lambda: facts(chat_template="<think>"), budget=BUDGET, enable_reasoning=True)
    parsed = dialect.parse(Payload(data=json.dumps({"messages": [USER], **body}).encode(), request_id="r"))
    formatter = parsed.formatter(
        GenerationRequest(request_id="r", prompts=("<think>",), sampling_params=parsed.request.sampling_params), (1,)
    )
    formatter.feed(TextDelta(text="Hm.", finish_reason=FinishReason.LENGTH))
    message = json.loads(formatter.finish())["choices"][0]["message"]
    assert message.get("reasoning_content") == ("Hm." if thinks else None)
    if thinks:  # [THINK] and its like are special tokens
        assert parsed.request.sampling_params.skip_special_tokens is False


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_earlier_messages_reach_the_template(name: str) -> None:
    message = msgspec.convert({"role": "assistant", name: "Hm."}, Message).text_only("messages[0]")
    assert (message["content"], message["reasoning_content"]) == ("", "Hm.")
    with pytest.raises(InvalidRequest, match="has neither content nor tool_calls"):
        msgspec.convert({"role": "assistant", name: ""}, Message).text_only("messages[0]")


# Over HTTP: the echo backend answers with the prompt, which is what the last message says

TEMPLATE = "{{ messages[-1].content }}{% if thinks %}<think>\\n{% endif %}{% if tools %}{% endif %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Server]:
    properties = f"option.rolling_batch=echo\noption.chat_template={TEMPLATE}\noption.enable_reasoning=true\n"
    started = Server(tmp_path_factory.mktemp("reasoning") / "m", properties)
    yield started.wait_ready()
    started.stop()


def chat(server: Server, text: str, **body: Any) -> requests.Response:
    answer = server.invoke({"messages": [{"role": "user", "content": text}], **body}, path="/v1/chat/completions")
    assert answer.status_code == 200, answer.text
    return answer


def said(server: Server, text: str, **body: Any) -> tuple[dict[str, Any], str]:
    """The message, whole and streamed, and why it ended. Ids of calls are left out."""
    (choice,) = chat(server, text, **body).json()["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.pop("tool_calls", ())]
    streamed = {"role": "", "content": "", "reasoning_content": ""}
    functions: list[dict[str, str]] = []
    records = chat(server, text, stream=True, **body).content.decode().split("\n\n")[:-2]
    parts = [json.loads(record.removeprefix("data: "))["choices"][0] for record in records]
    for part in parts:
        for call in part["delta"].pop("tool_calls", ()):
            if "id" in call:
                functions.append({"name": call["function"]["name"], "arguments": ""})
            functions[call["index"]]["arguments"] += call["function"]["arguments"]
        for key, value in part["delta"].items():
            streamed[key] += value
    assert functions == calls
    assert streamed == {"reasoning_content": "", **message, "content": message["content"] or ""}
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    return message | ({"calls": calls} if calls else {}), choice["finish_reason"]


def assistant(content: str | None, reasoning: str | None = None, **more: Any) -> dict[str, Any]:
    thoughts = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": content, **thoughts, **more}


def test_chat(server: Server) -> None:
    text = "<think>\nIt is été.\n</think>\n\nFour."
    assert said(server, text) == (assistant("Four.", "It is été."), "stop")
    assert said(server, text, max_tokens=12) == (assistant(None, "It i"), "length")
    assert said(server, "Four.") == (assistant("Four."), "stop")
    assert said(server, text, include_reasoning=False) == (assistant("Four."), "stop")
    assert "x-lmi-ignored-parameters" not in chat(server, text, include_reasoning=False).headers


def test_the_prompt_may_have_begun_the_thoughts(server: Server) -> None:
    options = {"chat_template_kwargs": {"thinks": True}}
    assert said(server, "Hm.</think>Four.", max_tokens=16, **options) == (assistant("Four.", "Hm."), "length")
    assert said(server, "Hm.", max_tokens=3, **options) == (assistant(None, "Hm."), "length")


def test_tools_after_thoughts(server: Server) -> None:
    text = f"<think>I call {CALL}.</think>\n\n{CALL}"
    calls = [{"name": "f", "arguments": '{"a": 1}'}]
    assert said(server, text, tools=[TOOL]) == (assistant(None, f"I call {CALL}.", calls=calls), "tool_calls")


def test_other_dialects_have_the_text(server: Server) -> None:
    text = "<think>Hm.</think>Four."
    assert server.invoke({"inputs": text, "parameters": {"max_new_tokens": 23}}).json() == {"generated_text": text}
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    (choice,) = server.invoke(body, path="/chat/completions").json()["choices"]
    assert choice["message"] == assistant(text)
    (choice,) = server.invoke({"messages": body["messages"]}).json()["choices"]
    assert choice["message"] == assistant("Four.", "Hm.")


def test_without_an_option_thoughts_stay(echo_server: Server) -> None:
    text = "<think>Hm.</think>Four."
    (choice,) = chat(echo_server, text, max_tokens=29).json()["choices"]
    assert choice["message"] == assistant(f"user: {text}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ("reasoning_parser=nonsense", "unknown option.reasoning_parser 'nonsense'"),
        ("enable_reasoning=true", "option.enable_reasoning=true: the chat template does not show"),
    ],
)
def test_wrong_options_end_the_server(start_server: StartServer, option: str, cause: str) -> None:
    server = start_server(f"option.rolling_batch=echo\noption.{option}\n", ready=False)
    assert server.process.wait(60) == 1
    assert cause in server.log
