"""The bytes that OpenAI's formatters write. No server is needed."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
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
from lmi_handlers.core.errors import (
    QueueFull,
)
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt, RenderedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.output_parsers.message import NamedCallParser
from lmi_handlers.text.output_parsers.tool_calls import CallListParser

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
                ('{"content":""}', '"stop"'),
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
        {"content": ""},
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


def test_token_cut_by_a_stop_string_is_listed_once_and_whole() -> None:
    cut = Token(2, "", -0.05, top=(Token(2, "6", -0.05, data=b"6"), Token(3, "7", -4.0, data=b"7")), data=b"6")
    document = json.loads(
        written(chat(ChatJsonFormatter, logprobs=True), delta(cut, reason=FinishReason.STOP_SEQUENCE))
    )
    assert document["choices"][0]["logprobs"]["content"][0]["token"] == "6"


def test_ids_of_tool_calls_suit_the_strictest_template() -> None:
    document = json.loads(
        written(
            chat(ChatJsonFormatter, parser=lambda: NamedCallParser("f")), delta(HELLO, reason=FinishReason.EOS_TOKEN)
        )
    )
    (call,) = document["choices"][0]["message"]["tool_calls"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", call["id"])


def test_token_ids_of_a_chat() -> None:
    prompts = (RenderedPrompt("Say: ", 2, (7, 8)),)
    options = ChatOptions(model="m", created=7, token_ids=True)
    document = json.loads(written(ChatJsonFormatter(request(), prompts, options=options), *STOP))
    assert document["prompt_token_ids"] == [7, 8]
    assert [choice["token_ids"] for choice in document["choices"]] == [[1, 2, 9]]
    chunks = json_chunks(written(ChatSseFormatter(request(), prompts, options=options), *STOP))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[7, 8], None, None, None]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [1], [2, 9], None]


def test_a_token_without_text_has_a_chunk_for_its_id() -> None:
    prompts, options = (RenderedPrompt("Say: ", 1, (7,)),), ChatOptions(model="m", created=7, token_ids=True)
    deltas = (delta(HALF), delta(WHOLE), delta(END, reason=FinishReason.EOS_TOKEN))
    chunks = json_chunks(written(ChatSseFormatter(request(), prompts, options=options), *deltas))
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert ids == [4, 5, 9]


def test_token_ids_of_completions() -> None:
    prompts = (RenderedPrompt("a", 1, (7,)), RenderedPrompt("b", 1, (8,)))
    options = CompletionOptions(model="m", created=7, n=2, token_ids=True)
    deltas = [
        delta(token, reason=FinishReason.LENGTH, index=index) for index, token in enumerate((HELLO, LO, HALF, WHOLE))
    ]
    asked = GenerationRequest(request_id="r", prompts=(Prompt("a"), Prompt("b")), sampling_params=SamplingParams(n=2))
    choices = json.loads(written(CompletionJsonFormatter(asked, prompts, options=options), *deltas))["choices"]
    assert [(choice["prompt_token_ids"], choice["token_ids"]) for choice in choices] == [
        ([7], [1]),
        ([7], [2]),
        ([8], [4]),
        ([8], [5]),
    ]
    chunks = json_chunks(written(CompletionSseFormatter(asked, prompts, options=options), *deltas))
    streamed = [chunk["choices"][0] for chunk in chunks]
    assert [(choice["prompt_token_ids"], choice["token_ids"]) for choice in streamed] == [
        ([7], [1]),
        ([7], [2]),
        ([8], [4]),
        ([8], [5]),
    ]


def test_tokens_are_written_as_ids() -> None:
    options = ChatOptions(model="m", created=7, logprobs=True, tokens_as_ids=True)
    document = json.loads(written(ChatJsonFormatter(request(), rendered(1), options=options), *STOP))
    _, second, _ = document["choices"][0]["logprobs"]["content"]
    assert second["token"] == "token_id:2"
    assert bytes(second["bytes"]) == b"token_id:2"
    assert [other["token"] for other in second["top_logprobs"]] == ["token_id:3", "token_id:2"]
    completion = CompletionOptions(model="m", created=7, logprobs=1, tokens_as_ids=True)
    document = json.loads(written(CompletionJsonFormatter(request(), rendered(1), options=completion), *STOP))
    logprobs = document["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:1", "token_id:2", "token_id:9"]
    assert logprobs["top_logprobs"][1] == {"token_id:3": -0.5, "token_id:2": -1.5}
