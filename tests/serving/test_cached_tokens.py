"""How many prompt tokens came from the prefix cache: from the engine to the answer, the log and the metrics."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from paths import SUPPORT
from server_sent_events import json_chunks
from serving import Server, StartServer
from waiting import wait_until

# A token is a byte. The chat template adds "user: " and "\nassistant: ".


CACHING = "option.rolling_batch=caching\n"
WITH_PLUGIN = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(SUPPORT / "caching_plugin"), os.environ.get("PYTHONPATH")]))
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on `CachingBackend`, whose cache never forgets: each test has prompts of its own."""
    server = Server(tmp_path_factory.mktemp("caching") / "m", CACHING, environ=WITH_PLUGIN)
    yield server.wait_ready()
    server.stop()


def usage(answer: requests.Response) -> Any:
    """The usage of a document, or the usages of a stream's chunks that are not null."""
    assert answer.status_code == 200, answer.text
    if answer.headers["Content-Type"] == "application/json":
        return answer.json()["usage"]
    return [chunk["usage"] for chunk in json_chunks(answer.text) if chunk["usage"] is not None]


def expected(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


@pytest.mark.parametrize(("path", "question"), [("/v1/chat/completions", "chat?"), ("/invocations", "invoke?")])
def test_chat(server: Server, path: str, question: str) -> None:
    def ask(content: str, **fields: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        body, headers = {"messages": messages, "max_tokens": 2, **fields}, {"Accept": "text/event-stream"}
        return usage(server.invoke(body, path=path, headers=headers))

    length = len(f"user: {question}\nassistant: ")
    ask("~")  # every chat begins with "user: "
    assert ask(question) == expected(length, 2, len("user: "))
    assert ask(question) == expected(length, 2, length - 1)
    assert ask(f"{question}!") == expected(length + 1, 2, len(f"user: {question}"))
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert ask(question, **streamed) == [expected(length, 2, length - 1)]


def test_samples_count_their_prompt_once(server: Server) -> None:
    body = {"prompt": ["one of two", "one by one"], "n": 3, "max_tokens": 1}
    assert usage(server.invoke(body, path="/v1/completions")) == expected(20, 6, 0 + len("one "))
    assert usage(server.invoke(body, path="/v1/completions")) == expected(20, 6, 9 + 9)
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    assert usage(server.invoke(streamed, path="/v1/completions")) == [expected(20, 6, 9 + 9)]


def test_a_stream_tells_it_in_its_last_usage(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "continuous", "max_tokens": 2, "stream": True, "stream_options": options}
    *others, last = usage(server.invoke(body, path="/v1/completions"))
    assert last == expected(10, 2, 0)
    assert others
    assert all(other.keys() == {"prompt_tokens", "completion_tokens", "total_tokens"} for other in others)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "~salted chat"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": ["salted", "salted as well"], "n": 2, "max_tokens": 1}),
        ("/v1/responses", {"input": "~salted response", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "~salted message"}], "max_tokens": 1}),
        ("/invocations", {"inputs": "~salted for LMI"}),
        ("/invocations", {"inputs": "salted beams", "parameters": {"num_beams": 2, "max_new_tokens": 3}}),
        ("/generate", {"inputs": "~salted for TGI", "parameters": {"max_new_tokens": 1}}),
    ],
)
def test_salts_separate_tenants(server: Server, path: str, body: dict[str, Any]) -> None:
    """Whoever sends a text with another salt is not told that somebody has sent it."""

    def cached(salt: str | None) -> int:
        inside = {"parameters": {**body.get("parameters", {}), "cache_salt": salt}}
        asked = body | (inside if "inputs" in body else {"cache_salt": salt})
        request_id = f"salted {next(NUMBERS)}"
        return logged(server, request_id, body=asked, path=path)[1]

    tenant, other = f"tenant {path} {body}"[:200], f"other {path} {body}"[:200]
    own = cached(tenant)  # of two prompts, the second may begin like the first
    assert cached(other) == own
    assert cached(tenant) > own
    for salt in ("", "x" * 257, 5, ["x"]):
        answer = server.invoke(
            body | ({"parameters": {"cache_salt": salt}} if "inputs" in body else {"cache_salt": salt}), path=path
        )
        assert 400 <= answer.status_code < 500, answer.text
        assert "cache_salt" in answer.text


NUMBERS = itertools.count()


def test_salts_separate_tenants_on_the_real_model(model_server: Server) -> None:
    """vLLM's blocks have 128 tokens on a CPU, ours 32."""
    prompt = "A thing of beauty is a joy for ever: its loveliness increases. " * 10

    def cached(**salt: str) -> int:
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **salt}
        answer: int = usage(model_server.invoke(body, path="/v1/completions"))["prompt_tokens_details"]["cached_tokens"]
        return answer

    assert cached(cache_salt="a") == cached(cache_salt="b") == cached() == 0
    again = cached(cache_salt="a")
    assert again == cached(cache_salt="b") == cached() >= 128


@pytest.mark.parametrize("stream", [False, True])
def test_aleph_alphas_usage_has_no_field_for_it(server: Server, stream: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Aleph"}], "maximum_tokens": 2, "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = usage(server.invoke(body | options, path="/chat/completions"))
    assert answer == ([USAGE] if stream else USAGE)


USAGE = {"prompt_tokens": 23, "completion_tokens": 2, "total_tokens": 25}


def logged(server: Server, request_id: str, **request: Any) -> tuple[int, int]:
    """Send a request, and return the prompt tokens and the cached tokens in its log entry."""
    headers = {"x-request-id": request_id} | request.pop("headers", {})
    answer = server.invoke(headers=headers, **request)
    assert answer.status_code == 200, answer.text
    entry = server.log_entry(answer.headers["x-request-id"])
    return entry["prompt_tokens"], entry["cached_tokens"]


def test_beams(server: Server) -> None:
    """A beam's own steps find their prompt in the cache, but that prompt is counted once."""
    body = {"inputs": "beams", "parameters": {"num_beams": 2, "max_new_tokens": 3}}
    assert logged(server, "first beams", body=body) == (5, 0)
    assert logged(server, "second beams", body=body) == (5, 4)


def test_records_of_a_batch(server: Server) -> None:
    records = "\n".join(json.dumps({"inputs": text}) for text in ("record", "record", "recorder"))
    headers = {"Content-Type": "application/jsonlines"}
    assert logged(server, "some records", data=records, headers=headers) == (20, 0 + 5 + 6)


def test_metrics(start_server: StartServer) -> None:
    server = start_server(CACHING, environ=WITH_PLUGIN)
    for prompt in ("metric", "metrics"):
        assert server.invoke({"inputs": prompt}).status_code == 200
    wait_until(
        lambda: counters(server) == {"vllm:prefix_cache_queries_total": 6 + 7, "vllm:prefix_cache_hits_total": 6}
    )


def counters(server: Server) -> dict[str, float]:
    lines = requests.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return {
        name.partition("{")[0]: float(value)
        for name, value in (line.split() for line in lines if line.startswith("vllm:prefix_cache_"))
    }


def test_engines_without_a_prefix_cache_send_no_details(echo_server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert "prompt_tokens_details" not in usage(echo_server.invoke(body, path="/v1/completions"))
