"""OpenAI's routes on real servers: chat, text completions and models, and OpenAI bodies on the invoke routes."""

from __future__ import annotations

import concurrent.futures
import gzip
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import starts
from byte_model import write_byte_model
from server_sent_events import json_chunks
from serving import Server
from starts import Both, write
from tokenizers import Tokenizer

environ = starts.environ
both = starts.both

USER = {"role": "user", "content": "hi"}


def chat(server: Server, *, path: str = "/v1/chat/completions", **body: Any) -> requests.Response:
    return server.invoke({"messages": [USER], **body}, path=path, timeout=300)


def completion(server: Server, **body: Any) -> requests.Response:
    return server.invoke(body, path="/v1/completions")


def choice(answer: requests.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (only,) = answer.json()["choices"]
    assert isinstance(only, dict)
    return only


def chunks(answer: requests.Response) -> list[dict[str, Any]]:
    assert answer.headers["Content-Type"] == "text/event-stream"
    return json_chunks(answer.content.decode())


def message(parts: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of a choice add up to, and its finish reason."""
    whole: dict[str, Any] = {"content": "", "tool_calls": []}
    for part in parts:
        for item in part["choices"]:
            if item["index"] != index:
                continue
            whole["content"] += item["delta"].get("content") or ""
            for call in item["delta"].get("tool_calls", ()):
                if "id" in call:
                    whole["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                whole["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            whole["finish_reason"] = item["finish_reason"]
    return whole


# Routes, on the echo backend, whose chat template renders "user: hi\nassistant: "


def test_chat(echo_server: Server) -> None:
    answer = chat(echo_server, max_tokens=8)
    assert answer.headers["Content-Type"] == "application/json"
    assert choice(answer)["message"] == {"role": "assistant", "content": "user: hi"}
    assert choice(answer)["finish_reason"] == "length"
    assert answer.json()["usage"] == {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


def test_chat_stream(echo_server: Server) -> None:
    answer = chat(echo_server, max_tokens=8, stream=True, stream_options={"include_usage": True})
    parts = chunks(answer)
    assert len({(part["id"], part["created"], part["system_fingerprint"]) for part in parts}) == 1
    assert message(parts) == {"content": "user: hi", "tool_calls": [], "finish_reason": "length"}
    assert parts[-1]["usage"] == {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
    assert answer.headers["Cache-Control"] == "no-cache"


def test_completions(echo_server: Server) -> None:
    answer = completion(echo_server, prompt=["abc", [104, 105]], max_tokens=2, n=2, echo=True)
    assert [(item["index"], item["text"]) for item in answer.json()["choices"]] == [
        (0, "abcab"),
        (1, "abcab"),
        (2, "hihi"),
        (3, "hihi"),
    ]
    assert answer.json()["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    streamed = chunks(completion(echo_server, prompt=["abc", "xyz"], max_tokens=3, stream=True))
    texts = {item["index"]: "" for part in streamed for item in part["choices"]}
    for part in streamed:
        for item in part["choices"]:
            texts[item["index"]] += item["text"]
    assert texts == {0: "abc", 1: "xyz"}


def test_models(echo_server: Server) -> None:
    answer = requests.get(echo_server.url + "/v1/models", timeout=60).json()
    assert answer["object"] == "list"
    assert [(model["id"], model["object"], model["parent"]) for model in answer["data"]] == [("m", "model", None)]
    assert answer["data"][0]["created"] > 1_700_000_000
    assert (answer["data"][0]["root"], answer["data"][0]["max_model_len"]) == ("m", 4096)
    assert requests.get(echo_server.url + "/v1/models/m", timeout=60).json() == answer["data"][0]
    unknown = requests.get(echo_server.url + "/v1/models/some/other", timeout=60)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.fixture(scope="module")
def named_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of code in a directory of its own, under two other names, and a template of the server's."""
    directory = tmp_path_factory.mktemp("model-of-code") / "weights"
    directory.mkdir()
    write_byte_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 261}')
    properties = f"option.rolling_batch=echo\noption.model_id={directory}\noption.served_model_name=mine, my/other\n"
    (own := tmp_path_factory.mktemp("named") / "m").mkdir()
    (own / "own.jinja").write_text(TEMPLATE)
    server = Server(own, f"{properties}option.chat_template=own.jinja\n")
    yield server.wait_ready()
    server.stop()


def test_clients_see_the_models_name_and_not_its_path(named_server: Server) -> None:
    server = named_server
    models = requests.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    assert [(model["id"], model["root"]) for model in models] == [("mine", "mine"), ("my/other", "mine")]
    for path in ("/v1/models", "/info", "/openapi.json", "/"):  # none of them needs a key
        assert "-of-code" not in requests.get(server.url + path, timeout=60).text
    assert completion(server, prompt="a", max_tokens=1).json()["model"] == "mine"
    assert completion(server, prompt="a", max_tokens=1, model="mine").json()["model"] == "mine"
    assert completion(server, prompt="a", max_tokens=1, model="my/other").json()["model"] == "my/other"
    for name in ("mine", "my/other"):
        assert requests.get(f"{server.url}/v1/models/{name}", timeout=60).json()["id"] == name


def test_a_model_of_code_fills_in_the_middle(named_server: Server) -> None:
    """The echo backend answers with the prompt, which has the model's own tokens."""
    answer = completion(named_server, prompt="def ", suffix=" pass", max_tokens=40).json()
    assert answer["choices"][0]["text"] == "<fim_prefix>def <fim_suffix> pass<fim_middle>"
    assert answer["usage"]["prompt_tokens"] == 1 + 3 + len("def  pass")  # with <s>


@pytest.mark.parametrize("path", ["/invocations", "/predictions/m"])
def test_body_determines_the_dialect(echo_server: Server, path: str) -> None:
    assert choice(chat(echo_server, path=path, max_tokens=4))["message"]["content"] == "user"
    prompt = {"prompt": "abc", "max_tokens": 3}
    assert choice(echo_server.invoke(prompt, path=path))["text"] == "abc"
    for extra in ({}, {"messages": [USER]}, prompt):
        body = {"inputs": "lmi", **extra}
        assert echo_server.invoke(body, path=path).json() == {"generated_text": "lmi"}
    # Nested names do not matter.
    assert echo_server.invoke({"inputs": '"messages"'}, path=path).json() == {"generated_text": '"messages"'}
    assert echo_server.invoke({"text": '"prompt"'}, path=path).json()["code"] == 424
    plain = requests.post(
        echo_server.url + path, data='{"prompt": 1}', headers={"Content-Type": "text/plain"}, timeout=60
    )
    assert plain.json() == {"generated_text": '{"prompt": 1}'}
    refused = chat(echo_server, path=path, n=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_batch_with_several_dialects(echo_server: Server) -> None:
    records = [{"messages": [USER], "max_tokens": 4}, {"inputs": "b"}, {"prompt": "c", "n": 0}, {"prompt": "d"}]
    answer = requests.post(
        echo_server.url + "/invocations",
        data="\n".join(map(json.dumps, records)),
        headers={"Content-Type": "application/jsonlines"},
        timeout=60,
    )
    first, second, third, fourth = map(json.loads, answer.text.splitlines())
    assert first["choices"][0]["message"]["content"] == "user"
    assert second == {"generated_text": "b"}
    assert third["error"]["param"] == "n"
    assert fourth["choices"][0]["text"] == "d"


def test_sagemakers_response_stream(echo_server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Forwarded-Api": "InvokeEndpointWithResponseStream"}
    answer = echo_server.invoke({"messages": [USER], "max_tokens": 4}, headers=headers)
    assert message([json.loads(line) for line in answer.text.splitlines()])["content"] == "user"
    api = f"{echo_server.url}/endpoints/m/invocations-response-stream"
    parts = requests.post(api, json={"messages": [USER], "max_tokens": 4}, timeout=60).content
    assert parts.count(b":event-type") == parts.count(b'{"id":'), "each line must be a separate payload part"


def test_errors_have_openais_shape(echo_server: Server) -> None:
    url = echo_server.url + "/v1/chat/completions"
    for data, content_type, status in (
        ("{", "application/json", 400),
        ("[]", "application/json", 400),
        ('{"messages": [], "x": NaN}', "application/json", 400),
        ('{"messages":' + "[" * 40_000, "application/json", 400),
        ("{}", "text/plain", 415),
        ('{"messages": "' + "x" * 1_048_577 + '"}', "application/json", 413),
    ):
        answer = requests.post(url, data=data, headers={"Content-Type": content_type}, timeout=60)
        assert answer.status_code == status, data[:20]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    packed = requests.post(url, data=gzip.compress(b'{"messages": []}'), headers=headers, timeout=60)
    assert (packed.status_code, "Content-Encoding" in packed.json()["error"]["message"]) == (415, True)
    too_long = chat(echo_server, messages=[{"role": "user", "content": "x" * 5000}])
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
    surrogate = requests.post(url, data=b'{"messages":[{"role":"user","content":"\\ud800"}]}', timeout=60)
    assert surrogate.status_code == 415
    surrogate = requests.post(
        url,
        data=b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert surrogate.status_code == 400


def test_failure_during_a_stream_is_an_event(echo_server: Server) -> None:
    *parts, last = chunks(completion(echo_server, prompt="hello RAISE@3", stream=True))
    assert "".join(part["choices"][0]["text"] for part in parts) == "he"
    assert last["error"]["type"] == "server_error"
    assert "failed at token 3" in last["error"]["message"]
    before = completion(echo_server, prompt="hello RAISE@1", stream=True)
    assert (before.status_code, before.json()["error"]["type"]) == (500, "server_error")


# The real model, and what depends on the engine on each


def test_chat_is_a_completion_of_the_rendered_template(model_server_once: Server) -> None:
    """The answer is the same as that of a text completion of the rendered template."""
    said = choice(chat(model_server_once, temperature=0, max_tokens=12, logprobs=True, top_logprobs=2))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    prompt = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    written = choice(completion(model_server_once, prompt=prompt, temperature=0, max_tokens=12, logprobs=2))
    assert said["message"]["content"] == written["text"]
    content = said["logprobs"]["content"]
    assert [item["logprob"] for item in content] == pytest.approx(written["logprobs"]["token_logprobs"], abs=1e-3)
    shown = [item["bytes"] for item in content if item["token"] != "<|im_end|>"]
    assert bytes(itertools.chain(*shown)).decode() == written["text"]
    for item in content:
        best, second = item["top_logprobs"]
        assert best["token"] == item["token"]
        assert best["logprob"] >= second["logprob"]


def test_stream_and_document_agree(model_server_once: Server) -> None:
    options: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 24, "n": 2, "stop": [" the"]}
    whole = chat(model_server_once, **options).json()["choices"]
    parts = chunks(chat(model_server_once, stream=True, **options))
    for index in range(2):
        streamed = message(parts, index)
        assert streamed["content"] == whole[index]["message"]["content"]
        assert streamed["finish_reason"] == whole[index]["finish_reason"]
    assert whole[0]["message"] != whole[1]["message"]


def test_final_assistant_message_is_continued(model_server_once: Server) -> None:
    begun = {"role": "assistant", "content": "The capital of France is"}
    messages = [{"role": "user", "content": "What is the capital of France?"}, begun]
    said = choice(chat(model_server_once, messages=messages, temperature=0, max_tokens=6))
    assert said["message"]["content"].startswith(" Paris")


def test_echo_returns_the_logprobs_of_a_prompt(model_server: Server) -> None:
    """lm-eval requests this: the logprobs of a prompt that is given as token ids."""
    ids = [504, 3575, 282, 4649, 314]
    scored = choice(completion(model_server, prompt=ids, echo=True, logprobs=1, max_tokens=1, temperature=0))[
        "logprobs"
    ]
    probabilities = scored["token_logprobs"]
    assert len(probabilities) == len(ids) + 1
    assert probabilities[0] is None
    assert scored["top_logprobs"][0] is None
    for probability, alternatives in zip(probabilities[1:], scored["top_logprobs"][1:], strict=True):
        assert probability <= max(alternatives.values()) + 1e-6
    assert probabilities[-1] == max(scored["top_logprobs"][-1].values())
    alone = choice(completion(model_server, prompt=ids, echo=True, logprobs=1, max_tokens=0))["logprobs"]
    assert alone["token_logprobs"][1:] == pytest.approx(probabilities[1:-1], abs=1e-3)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"$ref": "#/$defs/Hour"}},
            "required": ["hour"],
            "additionalProperties": False,
            "$defs": {"Hour": {"type": "integer", "minimum": 0, "maximum": 23}},
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK)}  # type: ignore[index]


def forced(number: int) -> dict[str, Any]:
    """Requests of every kind whose answer is constrained by a grammar, in turn."""
    question = {"role": "user", "content": f"Question {number}: what is the weather in Rome, and who is Ann?"}
    body: dict[str, Any] = {"messages": [question], "temperature": 1.0, "seed": number, "max_tokens": 100}
    tools = {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
    schema = {"name": "person", "schema": PERSON, "strict": True}
    return (
        body
        | (
            tools | {"tool_choice": "required"},
            tools | {"tool_choice": {"type": "function", "function": {"name": "set_alarm"}}},
            {"response_format": {"type": "json_schema", "json_schema": schema}},
        )[number % 3]
    )


def assert_valid(said: dict[str, Any]) -> None:
    calls = said.get("tool_calls") or []
    if calls:
        assert said["finish_reason"] == "tool_calls"
        (call,) = calls
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
    else:
        assert said["finish_reason"] == "stop"
        jsonschema.validate(json.loads(said["content"]), PERSON)


def whole(answer: requests.Response) -> dict[str, Any]:
    item = choice(answer)
    calls = [call["function"] for call in item["message"].get("tool_calls", ())]
    return {
        "content": item["message"]["content"] or "",
        "tool_calls": calls,
        "finish_reason": item["finish_reason"],
    }


def test_constrained_answers_are_valid(model_server: Server) -> None:
    """Of three grammars, with other seeds each time. `test_structured_outputs` has more grammars."""

    def ask(number: int) -> dict[str, Any]:
        body = forced(number)
        if number % 2:
            return message(chunks(chat(model_server, stream=True, **body)))
        return whole(chat(model_server, **body))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for said in pool.map(ask, range(8)):
            assert_valid(said)


def test_stream_and_document_of_a_constrained_answer_agree(model_server_once: Server) -> None:
    """One request of each kind."""
    for number in range(3):
        body = forced(number)
        assert message(chunks(chat(model_server_once, stream=True, **body))) == whole(chat(model_server_once, **body))


def test_tools_with_a_model_without_tool_support(model_server_once: Server) -> None:
    """This model's template does not render tools. They are appended to the last message, so the prompt has more tokens."""
    plain = chat(model_server_once, max_tokens=1).json()["usage"]["prompt_tokens"]
    told = chat(model_server_once, max_tokens=1, tools=[WEATHER]).json()["usage"]["prompt_tokens"]
    unsaid = chat(model_server_once, max_tokens=1, tools=[WEATHER], tool_choice="none").json()["usage"]["prompt_tokens"]
    assert told > plain + 40
    assert unsaid == plain


def test_invalid_schema_does_not_affect_other_requests(model_server_once: Server) -> None:
    schema = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}
    refused = chat(model_server_once, response_format={"type": "json_schema", "json_schema": schema})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "response_format"


def test_probabilities_are_numbers(model_server: Server) -> None:
    banned = choice(completion(model_server, prompt="Hello", max_tokens=2, logit_bias={"28": -100}, logprobs=20))
    for alternatives in banned["logprobs"]["top_logprobs"]:
        assert all(math.isfinite(value) for value in alternatives.values())


@pytest.mark.parametrize(
    "injected",
    [
        {"chat_template": "{{ cycler.__init__.__globals__.os.popen('id').read() }}"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"chat_template_kwargs": {"tools": [{}]}},
        {"chat_template_kwargs": {"conversations": []}},
    ],
)
def test_requests_cannot_set_the_template(echo_server: Server, injected: dict[str, Any]) -> None:
    assert chat(echo_server, **injected).status_code == 400


def test_template_syntax_in_a_message_is_plain_text(echo_server: Server) -> None:
    content = "{{ 1 + 1 }}{% for x in range(9) %}x{% endfor %}"
    said = choice(chat(echo_server, messages=[{"role": "user", "content": content}], max_tokens=len(content) + 6))
    assert said["message"]["content"] == f"user: {content}"


TEMPLATE = """\
{%- if messages[0].role == "system" %}{{ raise_exception("no system here") }}{% endif -%}
{%- for message in messages %}{{ message.role }}={{ message.content }};{% endfor -%}
{%- if tools %}<tool_call>{{ tools | length }}{% endif -%}"""


def test_server_can_set_the_template(named_server: Server) -> None:
    """The echo backend returns what this template renders: a Hermes tool call, whose format is detected from the template."""
    server = named_server
    assert choice(chat(server))["message"]["content"] == "user=hi;"
    refused = chat(server, messages=[{"role": "system", "content": "x"}])
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "messages: no system here")
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    messages = [{"role": "user", "content": f"Well. {call}"}]
    said = choice(chat(server, messages=messages, tools=[WEATHER]))
    assert said["finish_reason"] == "tool_calls"
    assert said["message"]["content"].startswith("user=Well.")
    assert [c["function"] for c in said["message"]["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    ]
    streamed = message(chunks(chat(server, messages=messages, tools=[WEATHER], stream=True)))
    assert streamed["tool_calls"] == [c["function"] for c in said["message"]["tool_calls"]]
    assert streamed["content"] == said["message"]["content"]
    assert choice(chat(server, messages=messages))["message"].get("tool_calls") is None


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ("chat_template=nowhere.jinja", "option.chat_template=nowhere.jinja is neither"),
        ("tool_call_parser=nonsense", "unknown option.tool_call_parser 'nonsense'"),
    ],
)
def test_invalid_template_or_parser_stops_the_server(both: Both, tmp_path: Path, option: str, cause: str) -> None:
    ended = both(write(tmp_path / "m", {"serving.properties": f"option.rolling_batch=echo\noption.{option}\n"}))
    assert ended.status == 1
    assert cause in ended.text
