"""Runs the scripts in tests/clients, each once and in its own process, and defines what they request."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import requests
from calls import Task
from paths import TESTS
from serving import Server

ENGINE_PYTHON = sys.executable
CLIENTS_PYTHON = str(Path(sys.prefix) / "clients" / "bin" / "python")
"""Python of the clients' environment, which `make test-long` creates. Clients need other versions than the engines."""

SCRIPTS = TESTS / "clients"

QUIET = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # Requests to any other host fail immediately.
    **dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], "http://127.0.0.1:9"),
    **dict.fromkeys(["no_proxy", "NO_PROXY"], "127.0.0.1"),
}

PROMPT = "The three primary colours are"
MAX_TOKENS = 8
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "rank": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
REGEX = "(red|blue) and [a-z]{4}"
TOOL = {
    "type": "function",
    "function": {"name": "rank_city", "description": "Rank a city.", "parameters": CITY},
}


class Outcomes:
    """What a script's calls returned or raised."""

    def __init__(self, outcomes: dict[str, dict[str, Any]]) -> None:
        self._outcomes = outcomes

    def __getitem__(self, call: str) -> Any:
        outcome = self._outcomes[call]
        assert "returned" in outcome, outcome
        return outcome["returned"]

    def error(self, call: str) -> tuple[str, str]:
        """The exception's fully qualified class name and its message."""
        outcome = self._outcomes[call]
        assert "raised" in outcome, outcome
        return outcome["raised"], outcome["message"]


Run = Callable[[str, str], Outcomes]
"""Runs a script with the given Python."""


def runner(
    *, model: str, echo: str, full: str, stop: str, tokenizer: str = "", environ: Mapping[str, str] | None = None
) -> Run:
    """Return a function that runs scripts against these servers, with more environment variables."""
    task = Task(
        model=model,
        echo=echo,
        full=full,
        prompt=PROMPT,
        max_tokens=MAX_TOKENS,
        stop=stop,
        schema=CITY,
        regex=REGEX,
        tool=TOOL,
        tool_choice={"type": "function", "function": {"name": "rank_city"}},
        tokenizer=tokenizer,
    )

    def run_script(script: str, python: str) -> Outcomes:
        command = [python, str(SCRIPTS / script), json.dumps(dataclasses.asdict(task))]
        with tempfile.TemporaryDirectory() as home:  # for the clients' caches
            variables = {"PATH": os.defpath, "HOME": home, **QUIET, **(environ or {})}
            ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr
        # Some clients log to standard output before.
        return Outcomes(json.loads(ended.stdout.splitlines()[-1]))

    return run_script


@contextlib.contextmanager
def full_server(directory: Path) -> Iterator[Server]:
    """A server whose only place in the batch and only place in the queue are taken."""
    properties = (  # one token per second: slow, but not stalled
        "option.rolling_batch=echo\noption.echo_tokens_per_second=1\noption.predict_timeout=3600\n"
        "option.max_rolling_batch_size=1\njob_queue_size=1\n"
    )
    server = Server(directory, properties).wait_ready()

    slow = {"inputs": "x" * 3600, "parameters": {"max_new_tokens": 3600}}

    def occupy() -> requests.Response:
        return requests.post(server.url + "/generate_stream", json=slow, stream=True, timeout=3600)

    both: list[concurrent.futures.Future[requests.Response]] = []
    with occupy() as running, concurrent.futures.ThreadPoolExecutor(2) as pool:
        try:
            events = running.iter_lines()  # closes the connection at exit
            next(events)
            both += [pool.submit(occupy) for _ in range(2)]
            (refused,), _ = concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_COMPLETED)
            assert refused.result().status_code == 429
            yield server
        finally:
            server.stop()
            for answer in both:
                with contextlib.suppress(requests.RequestException):
                    answer.result().close()


def chat(model: Server, **parameters: Any) -> dict[str, Any]:
    """The answer of OpenAI's route to a plain HTTP request. Sampling is greedy unless `parameters` say otherwise."""
    messages = [{"role": "user", "content": PROMPT}]
    asked = {"model": "tgi", "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, **parameters}
    answer = model.invoke(asked, path="/v1/chat/completions")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def text_of(answer: dict[str, Any]) -> str:
    """The text of a chat."""
    text: str = answer["choices"][0]["message"]["content"]
    return text


def joined(chunks: list[dict[str, Any]]) -> str:
    """The text of a streamed chat."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def assert_tool_call(answer: dict[str, Any]) -> None:
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "rank_city"
    jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)


def assert_streamed_tool_call(chunks: list[dict[str, Any]]) -> None:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    functions = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls") or []]
    assert [function["name"] for function in functions if function.get("name")] == ["rank_city"]
    jsonschema.validate(json.loads("".join(function.get("arguments") or "" for function in functions)), CITY)


def token_counts(usage: dict[str, Any]) -> dict[str, int]:
    """Return what OpenAI's `usage` always has. Its details depend on what the engine has cached by then."""
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def without_nulls(value: Any) -> Any:
    """Remove nulls, which clients use for absent fields."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
