"""Bodies designed to be expensive, on one web worker: each is rejected or answered, and no other client has to wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from neighbours import Neighbours
from serving import Server

MIB = 1 << 20
LIMIT = 64 * MIB
"""`max_request_size`, the default."""

TEXT_LIMIT = 16 * MIB
"""`max_text_bytes`, the default."""

SMALL_MIB = 64
"""Memory that any body may take, even a small one."""

JSON = "application/json"
JSON_LINES = "application/jsonlines"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
ALEPH_ALPHA = "/chat/completions"
ALEPH_ALPHA_TEXT = "/complete"
TGI = ("/generate", "/generate_stream", "/")
CHATS = (CHAT, ALEPH_ALPHA, "/invocations")


TEXT = {"type": "text", "text": "a"}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "a"}


def inputs(**parameters: Any) -> bytes:
    return json.dumps({"inputs": "a", "parameters": {"max_new_tokens": 2} | parameters}).encode()


def chat(**fields: Any) -> bytes:
    fields = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2} | fields
    return json.dumps(fields).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 2} | fields).encode()


def response(**fields: Any) -> bytes:
    return json.dumps({"input": "a", "max_output_tokens": 2} | fields).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "a", "maximum_tokens": 2} | fields).encode()


def fill(before: bytes, item: bytes, after: bytes, size: int = TEXT_LIMIT) -> bytes:
    """A body of (almost) `size` bytes that repeats `item`."""
    return before + item * ((size - len(before) - len(after)) // len(item)) + after


def turns(count: int) -> list[dict[str, str]]:
    """An odd number of messages in an order that all dialects accept."""
    return [{"role": "assistant" if place % 2 else "user", "content": "a"} for place in range(count | 1)]


def tool(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}} | fields}


STOPS = [f"{number:x}" for number in range(300_000)]
LONG = "x" * 8 * MIB
JSON_OBJECTS = "[" + "{}," * 4_000_000 + "1]"

Case = tuple[tuple[str, ...], str, Callable[[], bytes], str | None]
"""Routes, content type, body and error message, which is None if the request succeeds."""

UNKNOWN_OBJECTS = (JSON, lambda: fill(b'{"inputs":"a","x":[', b"{},", b"1]}"), "max_json_containers")

CASES: dict[str, Case] = {
    # JSON itself, on every route
    "objects in an unknown field": (("/invocations", "/generate", CHAT), *UNKNOWN_OBJECTS),
    "objects in an unknown field, elsewhere": (
        (*TGI[1:], "/tokenize", "/chat_tokenize", COMPLETIONS, ALEPH_ALPHA, ALEPH_ALPHA_TEXT, "/infill"),
        *UNKNOWN_OBJECTS,
    ),
    "files beside a gap": (
        ("/infill", "/invocations"),
        JSON,
        lambda: fill(b'{"input_prefix":"","input_suffix":"","input_extra":[', b'{"text":""},', b'{"text":""}]}'),
        "max_json_containers",
    ),
    "objects as far as it goes": (
        ("/invocations", CHAT),
        JSON,
        lambda: fill(b'{"messages":[],"x":[', b"{},", b"1]}", LIMIT),
        "max_text_bytes",
    ),
    "fields": (("/invocations", "/generate"), JSON, lambda: fill(b'{"a":1', b',"a":1', b"}"), "max_json_values"),
    "numbers": (("/invocations", COMPLETIONS), JSON, lambda: fill(b'{"prompt":[', b"1,", b"1]}"), "max_json_values"),
    "strings": (("/invocations", CHAT), JSON, lambda: fill(b'{"x":[', b'"",', b'""]}'), "max_json_values"),
    "a long text": (
        ("/invocations", "/generate", "/tokenize", COMPLETIONS),
        JSON,
        lambda: fill(b'{"inputs":"', b"a b ", b'"}', LIMIT),
        "max_text_bytes",
    ),
    "a long text of emoji": (
        ("/invocations",),
        JSON,
        lambda: fill(b'{"inputs":"', b"abc\xf0\x9f\x98\x80", b'"}', LIMIT),
        "max_text_bytes",
    ),
    "escapes": (("/invocations",), JSON, lambda: fill(b'{"inputs":"', b"\\n", b'"}', LIMIT), "max_text_bytes"),
    "plain text": (("/invocations",), "text/plain", lambda: b"a b " * (LIMIT // 4), "max_text_bytes"),
    "nesting": (("/invocations", "/generate", CHAT), JSON, lambda: b"[" * MIB, "max_json_containers"),
    "images": (
        (CHAT,),
        JSON,
        lambda: chat(
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 60 * MIB}}],
                }
            ]
        ),
        "max_image_bytes",
    ),
    "names of adapters": (
        ("/invocations",),
        JSON,
        lambda: json.dumps({"inputs": ["a"], "adapters": ["a"] * 400_000}).encode(),
        "must have a name for each",
    ),
    # JSON lines
    "lines": (("/invocations",), JSON_LINES, lambda: b"1\n" * 500_000, "max_batch_records"),
    "blank lines": (("/invocations",), JSON_LINES, lambda: b"\n" * LIMIT, "max_batch_records"),
    "a line of objects": (("/invocations",), JSON_LINES, lambda: b"1\n" + fill(b"[", b"{},", b"1]\n"), None),
    "as many lines as may be": (("/invocations",), JSON_LINES, lambda: b"1\n" * 2_000, None),
    # Long outputs
    "prompts": (("/invocations",), JSON, lambda: json.dumps({"inputs": ["a"] * 400_000}).encode(), "max_sequences"),
    "prompts x n": (
        ("/invocations",),
        JSON,
        lambda: json.dumps({"inputs": ["a"] * 1000, "parameters": {"n": 128, "do_sample": True}}).encode(),
        "max_sequences",
    ),
    "prompts x beams": (
        ("/invocations",),
        JSON,
        lambda: json.dumps({"inputs": ["a"] * 1000, "parameters": {"num_beams": 128}}).encode(),
        "max_sequences",
    ),
    "completions x n": ((COMPLETIONS,), JSON, lambda: text(prompt=["a"] * 1000, n=128), "max_sequences"),
    "completions x best_of": ((COMPLETIONS,), JSON, lambda: text(prompt=["a"] * 1000, best_of=128), "max_sequences"),
    "prompts of token ids": ((COMPLETIONS,), JSON, lambda: text(prompt=[[1]] * 40_000), "max_sequences"),
    "token ids": ((COMPLETIONS,), JSON, lambda: text(prompt=[1] * 900_000), "max_json_values"),
    "items of a prompt": (
        (ALEPH_ALPHA_TEXT,),
        JSON,
        lambda: completion(prompt=[{"type": "text", "data": "a"}] * 40_000),
        "max_content_parts",
    ),
    # Stop strings and similar parameters
    "stops of LMI": (("/invocations",), JSON, lambda: inputs(stop=STOPS), "max_strings"),
    "stop sequences of LMI": (("/invocations",), JSON, lambda: inputs(stop_sequences=STOPS), "max_strings"),
    "stops of chats": (CHATS, JSON, lambda: chat(stop=STOPS), "max_strings"),
    "stops of completions": ((COMPLETIONS,), JSON, lambda: text(stop=STOPS), "max_strings"),
    "stops of Aleph Alpha": ((ALEPH_ALPHA_TEXT,), JSON, lambda: completion(stop_sequences=STOPS), "max_strings"),
    "stops of TGI": (TGI, JSON, lambda: inputs(stop=STOPS), "supports up to 4 stop sequences"),
    "a long stop of LMI": (("/invocations",), JSON, lambda: inputs(stop=LONG), "max_string_characters"),
    "a long stop of a chat": (CHATS, JSON, lambda: chat(stop=LONG), "max_string_characters"),
    "a long stop of TGI": (TGI, JSON, lambda: inputs(stop=[LONG]), "max_string_characters"),
    "stops x n": (
        ("/invocations",),
        JSON,
        lambda: inputs(stop=["y" * 31 + f"{number:x}" for number in range(1000)], n=128, do_sample=True),
        "max_string_characters",
    ),
    "bad words": (CHATS[:1], JSON, lambda: chat(bad_words=STOPS), "max_strings"),
    "bad words of LMI": (("/invocations",), JSON, lambda: inputs(bad_words=STOPS), "max_strings"),
    "exclusions": ((ALEPH_ALPHA_TEXT,), JSON, lambda: completion(completion_bias_exclusion=STOPS), "max_strings"),
    "choices": (CHATS[::2], JSON, lambda: chat(guided_choice=STOPS), "max_strings"),
    "choices of LMI": (("/invocations",), JSON, lambda: inputs(structured_outputs={"choice": STOPS}), "max_strings"),
    "biases": (CHATS, JSON, lambda: chat(logit_bias={str(number): 1 for number in range(400_000)}), "max_json_values"),
    "biases of LMI": (
        ("/invocations",),
        JSON,
        lambda: inputs(logit_bias=dict.fromkeys(range(400_000), 1)),
        "max_json_values",
    ),
    "stop token ids": ((COMPLETIONS,), JSON, lambda: text(stop_token_ids=[1] * 400_000), "max_token_ids"),
    "allowed token ids": (("/invocations",), JSON, lambda: inputs(allowed_token_ids=[1] * 400_000), "max_token_ids"),
    "as many biases as may be": ((COMPLETIONS,), JSON, lambda: text(logit_bias=dict.fromkeys(range(200_000), 1)), ""),
    # Conversations
    "messages": ((*CHATS, "/chat_tokenize"), JSON, lambda: chat(messages=turns(24_000)), "max_messages"),
    "parts": (
        (CHAT, "/chat_tokenize"),
        JSON,
        lambda: chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 40_000}]),
        "max_content_parts",
    ),
    "links": (
        (CHAT,),
        JSON,
        lambda: chat(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}] * 9_000}]
        ),
        "",
    ),
    "tools": (
        (CHAT, "/chat_tokenize"),
        JSON,
        lambda: chat(tools=[tool(number) for number in range(15_000)]),
        "max_tools",
    ),
    "a tool's schema": (
        (CHAT,),
        JSON,
        lambda: chat(tools=[tool(1, parameters={"required": STOPS})], tool_choice="required"),
        "max_schema_bytes",
    ),
    "arguments": (
        (CHAT, "/chat_tokenize"),
        JSON,
        lambda: chat(
            messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": JSON_OBJECTS}}]}]
        ),
        "max_json_containers",
    ),
    "functions of a chat": (
        (CHAT,),
        JSON,
        lambda: chat(functions=[{"name": f"f{number}"} for number in range(15_000)]),
        "max_tools",
    ),
    "a function's schema": (
        (CHAT,),
        JSON,
        lambda: chat(functions=[{"name": "f", "parameters": {"required": STOPS}}], function_call={"name": "f"}),
        "max_schema_bytes",
    ),
    "arguments in the older form": (
        (CHAT, "/chat_tokenize"),
        JSON,
        lambda: chat(messages=[{"role": "assistant", "function_call": {"name": "f", "arguments": JSON_OBJECTS}}]),
        "max_json_containers",
    ),
    "documents": ((CHAT,), JSON, lambda: chat(documents=[{"a": "b"}] * 40_000), "max_messages"),
    "variables": ((CHAT,), JSON, lambda: chat(chat_template_kwargs={"a": STOPS}), "max_schema_bytes"),
    "a schema": (CHATS[::2], JSON, lambda: chat(guided_json={"enum": STOPS}), "max_schema_bytes"),
    "a schema as text": (("/invocations",), JSON, lambda: inputs(guided_json=LONG), "max_schema_bytes"),
    "a response format": (
        (CHAT,),
        JSON,
        lambda: chat(response_format={"type": "json_object", "schema": {"enum": STOPS}}),
        "max_schema_bytes",
    ),
    "a regular expression": ((COMPLETIONS,), JSON, lambda: text(guided_regex=LONG), "max_schema_bytes"),
    "a grammar of TGI": (TGI, JSON, lambda: inputs(grammar={"type": "regex", "value": LONG}), "max_schema_bytes"),
    # Responses
    "items": ((RESPONSES,), JSON, lambda: response(input=turns(24_000)), "max_messages"),
    "parts of an item": (
        (RESPONSES,),
        JSON,
        lambda: response(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 40_000}]),
        "max_content_parts",
    ),
    "calls as far as it goes": (
        (RESPONSES,),
        JSON,
        lambda: response(input=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 2048),
        None,
    ),
    "arguments of a call": (
        (RESPONSES,),
        JSON,
        lambda: response(input=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": JSON_OBJECTS}]),
        "max_json_containers",
    ),
    "unknown fields of an item": (
        (RESPONSES,),
        JSON,
        lambda: fill(b'{"input":[{"role":"user","content":"a","x":[', b"{},", b"1]}]}"),
        "max_json_containers",
    ),
    "functions": (
        (RESPONSES,),
        JSON,
        lambda: response(tools=[{"type": "function", "name": f"f{number}"} for number in range(15_000)]),
        "max_tools",
    ),
    "a text format": (
        (RESPONSES,),
        JSON,
        lambda: response(text={"format": {"type": "json_schema", "name": "a", "schema": {"enum": STOPS}}}),
        "text.format: has",
    ),
    "stops of responses": ((RESPONSES,), JSON, lambda: response(stop=STOPS), "max_strings"),
    "metadata": ((RESPONSES,), JSON, lambda: response(metadata={"a": LONG}), "metadata"),
    "a response's model": ((RESPONSES,), JSON, lambda: response(model=LONG), "1024"),
    # Anthropic's messages
    "results of tools": (
        (MESSAGES,),
        JSON,
        lambda: chat(messages=[{"role": "user", "content": [RESULT] * 9_000}]),
        "max_messages",
    ),
    "parts of a result": (
        (MESSAGES,),
        JSON,
        lambda: chat(messages=[{"role": "user", "content": [RESULT | {"content": [TEXT] * 20_000}]}]),
        "max_content_parts",
    ),
    "a system prompt": ((MESSAGES,), JSON, lambda: chat(system=[TEXT] * 20_000), "max_content_parts"),
    "tools of Anthropic's": (
        (MESSAGES,),
        JSON,
        lambda: chat(tools=[{"name": f"f{number}", "input_schema": {}} for number in range(15_000)]),
        "max_tools",
    ),
    "stop sequences": ((MESSAGES,), JSON, lambda: chat(stop_sequences=STOPS), "max_strings"),
    "a user's name": ((MESSAGES,), JSON, lambda: chat(metadata={"user_id": LONG}), "metadata.user_id"),
    "a model's name": ((CHAT, ALEPH_ALPHA), JSON, lambda: chat(model=LONG), "1024"),
}

ALIKE = (
    "objects in an unknown field, elsewhere",
    "objects as far as it goes",
    "a long text of emoji",
    "escapes",
)
"""Cases that other cases cover: the same check rejects them first."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one web worker and default options. Its tokens come at a rate at which delays are visible."""
    properties = "option.rolling_batch=echo\noption.model_name=m\noption.echo_tokens_per_second=50\n"
    server = Server(tmp_path_factory.mktemp("hostile") / "m", properties, "--workers", "1")
    yield server.wait_ready()
    server.stop()


def post(server: Server, path: str, content_type: str, data: bytes) -> tuple[int, str]:
    headers = {"Content-Type": content_type}
    answer = requests.post(server.url + path, data=data, headers=headers, timeout=120)
    return answer.status_code, answer.text


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in ALIKE else name for name in CASES]
)
def test_hostile_body_does_not_delay_other_clients(server: Server, name: str) -> None:
    paths, content_type, make, named = CASES[name]
    data = make()
    with Neighbours(server) as neighbours:
        answers = {path: post(server, path, content_type, data) for path in paths}
    for path, (status, text) in answers.items():
        said = f"{path}: {status} {text[:300]}"
        assert (status == 200) if named is None else (400 <= status < 500), said
        assert (named or "") in said
    assert neighbours.grown_mib < max(20 * len(data) / MIB, SMALL_MIB)


@pytest.mark.parametrize("body", [{"messages": [{"content": [{"type": LONG}]}]}, {"response_format": {"type": LONG}}])
def test_a_wrong_value_is_not_quoted_in_full(server: Server, body: dict[str, Any]) -> None:
    """Neither for the client nor in the log."""
    status, text = post(server, CHAT, JSON, chat(**body))
    assert status == 400
    assert "type: Invalid value 'xxx" in text
    assert len(text) < 3000
    assert LONG[:3000] not in server.log


HONEST: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a chat of a thousand messages": (CHAT, lambda: chat(messages=turns(1000))),
    "an agent's tools": (
        CHAT,
        lambda: chat(tools=[tool(number, description="d" * 900) for number in range(160)]),
    ),
    "a batch of prompts": (COMPLETIONS, lambda: text(prompt=["a" * 500] * 500)),
    "a batch of tokens": (COMPLETIONS, lambda: text(prompt=[[5] * 1000] * 256)),
    "a batch to LMI": (
        "/invocations",
        lambda: json.dumps({"inputs": ["a" * 500] * 500, "parameters": {"max_new_tokens": 1}}).encode(),
    ),
    "sixteen stops": ("/invocations", lambda: inputs(stop=[f"stop {number}" for number in range(16)])),
    "biases of half a vocabulary": (COMPLETIONS, lambda: text(logit_bias=dict.fromkeys(map(str, range(128)), -1))),
    "128 samples": (CHAT, lambda: chat(n=128)),
}


@pytest.mark.parametrize("name", HONEST)
def test_large_ordinary_bodies_are_accepted(server: Server, name: str) -> None:
    path, make = HONEST[name]
    status, text = post(server, path, JSON, make())
    assert status == 200, text[:300]


def test_body_that_arrives_byte_by_byte(server: Server) -> None:
    body = inputs(details=True)

    def pieces() -> Iterator[bytes]:
        for place in range(len(body)):
            yield body[place : place + 1]

    answer = requests.post(f"{server.url}/invocations", data=pieces(), headers={"Content-Type": JSON}, timeout=60)
    assert answer.status_code == 200
