"""The exact bytes that DJL Serving 0.31 sent. Each vector describes how it was recorded."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lmi_command import lmi
from paths import DATA, RECORDINGS, SUPPORT
from prompts import rendered
from recordings import capture_record
from serving import Server

from formatters import load_formatter_class
from formatters.base import Formatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.lmi.body import parse_body
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import RequestFailed
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams

BUDGET = Budget.of(ServingProperties())

VECTORS: list[dict[str, Any]] = [
    *json.loads((DATA / "lmi-0.31.json").read_text()),
    *json.loads((RECORDINGS / "lmi" / "http-0.31.json").read_text()),
]


def speaks_tgi(vector: dict[str, Any]) -> bool:
    """DJL's `tgi_compat` covers half of TGI's API. Ours covers all of it, with TGI's own bytes (test_tgi.py)."""
    given = vector["input"]
    return isinstance(given, dict) and (given.get("tgi_compat") or "tgi_compat" in given.get("serving.properties", ""))


def vectors(layer: str) -> list[Any]:
    chosen = [vector for vector in VECTORS if vector["layer"] == layer and not speaks_tgi(vector)]
    return [pytest.param(vector, id=f"{vector['formatter']}: {vector['case']}") for vector in chosen]


def request_of(given: dict[str, Any]) -> GenerationRequest:
    parameters = given["parameters"]
    return GenerationRequest(
        request_id="r",
        prompts=(Prompt(given["prompt"]),),
        sampling_params=SamplingParams(n=1 if given["stream"] else parameters.get("n", 1), skip_special_tokens=False),
        stream=given["stream"],
        details=bool(parameters.get("details")),
        return_full_text=parameters.get("return_full_text", False),
    )


def token_of(entry: list[Any], *, special: bool = False) -> Token:
    return Token(entry[0], entry[1], entry[2], special)


def formatter_for(vector: dict[str, Any]) -> Formatter:
    return load_formatter_class(vector["formatter"])(
        request_of(vector["input"]), rendered(4, vector["input"]["prompt"])
    )


@pytest.mark.parametrize("vector", vectors("python formatter"))
def test_formatter(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], vector["output"]
    formatter = formatter_for(vector)
    assert formatter.content_type == expected["content_type"]
    if "sequences" in given:
        check_best_of(vector, formatter)
        return
    deltas = deltas_of(given)
    steps = [formatter.feed(delta) for delta in deltas]
    if "engine_error" in given:
        if not formatter.streams:
            # No answer has begun, so the dialect's error replaces it. The real server discarded this body, too.
            assert steps == [b""] * len(deltas)
            return
        steps.append(formatter.error(RequestFailed(given["engine_error"])))
    else:
        steps[-1] += formatter.finish()
    assert [step.decode() for step in steps] == expected["per_step"]


def deltas_of(given: dict[str, Any]) -> list[TextDelta]:
    tokens = [token_of(entry, special=given.get("special_token", False)) for entry in given["tokens"]]
    wants_prefill = given["parameters"].get("decoder_input_details", False)
    prefill = tuple(token_of(entry) for entry in given.get("prefill", ())) if wants_prefill else ()
    ends = "engine_error" not in given
    return [
        TextDelta(
            tokens=(token,),
            text=token.text,
            prompt_tokens=prefill if position == 0 else (),
            finish_reason=FinishReason(given["finish_reason"]) if ends and position == len(tokens) - 1 else None,
        )
        for position, token in enumerate(tokens)
    ]


def check_best_of(vector: dict[str, Any], formatter: Formatter) -> None:
    """The vectors' engine says that the second sequence is the best. We stream the first and show the most probable one.

    So the test feeds that sequence first, and makes the other's tokens improbable, also in the expected answer.
    """
    given = vector["input"]
    expected = "".join(vector["output"]["per_step"])
    best = given["sequences"][str(given["best"])]
    rival = given["sequences"][str(1 - given["best"])]
    answer = b""
    for index, entries in enumerate((best, rival)):
        if index and formatter.streams:
            break
        for position, (token_id, text, logprob) in enumerate(entries):
            if index:
                expected = expected.replace(f"{logprob}}}", f"{logprob - 10}}}", 1) if logprob > -1 else expected
                logprob -= 10
            reason = FinishReason.LENGTH if position == len(entries) - 1 else None
            token = Token(token_id, text, logprob)
            answer += formatter.feed(TextDelta(index=index, tokens=(token,), text=text, finish_reason=reason))
    assert (answer + formatter.finish()).decode() == expected


@pytest.mark.parametrize("vector", vectors("formatter selection"))
def test_formatter_selection(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], vector["output"]
    if given["output_formatter"] in ("none", "3p", "json_chat"):
        pytest.skip("`none` and `3p` crash in DJL for such a request; chat formats belong to the chat dialect")
    body: dict[str, Any] = {"inputs": "x", "stream": given["stream"]}
    if given["output_formatter"] is not None:
        body["parameters"] = {"output_formatter": given["output_formatter"]}
    parsed = LmiDialect(ServingProperties(), {}).parse(Payload(data=json.dumps(body).encode(), request_id="r"))
    formatter = parsed.formatter(parsed.request, rendered())
    assert formatter.content_type == expected["content_type"]


# vLLM's name of a parameter, if its name or its representation differs from ours.
VLLM_DEFAULTS = {"max_tokens": 30, "temperature": 0.0}


@pytest.mark.parametrize("vector", vectors("parameter translation"))
def test_parameter_translation(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], dict(vector["output"])
    if given.get("do_sample") == "false":
        pytest.skip("DJL takes the string for true; a wrong type is an error here")
    payload = Payload(data=json.dumps({"inputs": "x", "parameters": given}).encode(), request_id="r")
    body = parse_body(payload, BUDGET)
    params = body.parameters.sampling_params(stream=False, needs_logprobs=True, sampled_defaults={})
    assert (body.parameters.beam_search_params() is not None) == expected.pop("use_beam_search", False)
    expected.pop("best_of", None)  # removed in vLLM; `n` is the number of sequences
    if expected["logprobs"] == 1:
        expected["logprobs"] = 0  # the logprob of the sampled token, the only one that DJL returns
    if "prompt_logprobs" in expected:
        expected["prompt_logprobs"] = 0
    if "stop" in expected:
        expected["stop"] = tuple(expected["stop"])
    assert {name: getattr(params, name) for name in expected} == expected


# HTTP, on a real server with a third-party engine


def load_plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripted_backend", SUPPORT / "plugin" / "scripted_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fleet:
    """One server per recorded configuration, started when first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, Server] = {}
        self._plugin = load_plugin()

    def serve(self, name: str, properties: str) -> Server:
        if name not in self._servers:
            self._plugin.write_model(self._directory / name)
            path = os.pathsep.join(filter(None, [str(SUPPORT / "plugin"), os.environ.get("PYTHONPATH")]))
            lines = properties.replace("=vllm", "=scripted").replace(", ", "\n") + f"\noption.model_name={name}\n"
            server = Server(self._directory / name, lines, environ={"PYTHONPATH": path})
            self._servers[name] = server.wait_ready()
        return self._servers[name]

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("vectors"))
    yield fleet
    fleet.stop()


# Why some successful answers of DJL are errors here, or have different bytes.
OTHER_CONTRACTS = {
    "parameters.output_formatter=json_chat, non-stream": "chat",
    "parameters.output_formatter=jsonlines_chat, non-stream": "chat",
    "messages, logprobs, stream": "chat",
    "POST /v1/chat/completions?model_name=plain": "chat",
    "parameters.output_formatter=3p_stream, non-stream": "Bedrock",
    "num_beams=2, details, non-stream": "the scripted engine has one answer to every prompt, so no beam can go on",
    "header adapter not registered": "adapters",
    "GET /ping": "one model a server; see test_server.py",
    "GET /models": "management",
    "OPTIONS /predictions/plain": "CORS",
    "x-synchronous:false header": "the asynchronous cache",
}


def http_vectors() -> list[Any]:
    chosen = []
    for vector in VECTORS:
        output = vector["output"]
        if vector["layer"] != "http" or not isinstance(output, dict) or " 200 " not in output["status_line"]:
            continue
        if speaks_tgi(vector):
            continue
        if (
            vector["case"] in OTHER_CONTRACTS
            or "RAISE@" in json.dumps(vector["input"])
            or "error" in output["body"][:20]
        ):
            continue
        if output["body"].startswith("Input Parsing failed"):
            continue  # DJL's dynamic batch answers a parse error with 200; we answer with 424
        chosen.append(pytest.param(vector, id=f"{vector['formatter']}: {vector['case']}"))
    return chosen


def exchange(server: Server, request: dict[str, Any], path: str) -> tuple[int, dict[str, str], str]:
    """Returns status, headers with lower-case names, and body."""
    body = request["body"] if isinstance(request["body"], str) else json.dumps(request["body"])
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(request["method"], path, body.encode(), request["headers"])
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read().decode()


@pytest.mark.parametrize("vector", http_vectors())
def test_http_success(vector: dict[str, Any], fleet: Fleet) -> None:
    given, expected = vector["input"], vector["output"]
    original_name = given["request"]["path"].split("/")[2]
    name = original_name if original_name != "lmi" else "plain"
    server = fleet.serve(name, given["serving.properties"])
    path = given["request"]["path"].replace(original_name, name)
    status, headers, body = exchange(server, given["request"], path)
    assert status == 200
    assert body == expected["body"]
    fixed = [line for line in expected["headers"] if not line.startswith(("requestId", "x-request-id", "connection"))]
    for line in fixed:
        header, _, value = line.partition(": ")
        assert headers[header.lower()] == value
    assert headers["x-request-id"]


def test_replayed_vectors_are_a_go(fleet: Fleet, tmp_path: Path) -> None:
    """The vectors as SageMaker's Data Capture would have recorded them."""
    recorded = []
    for vector in (each.values[0] for each in http_vectors()):
        given, output = vector["input"], vector["output"]
        if (
            given["serving.properties"] == "option.rolling_batch=vllm"
            and given["request"]["path"] == "/predictions/plain"
        ):
            content_type = next(line for line in output["headers"] if line.startswith("Content-Type: "))[14:]
            body = given["request"]["body"]
            body = body if isinstance(body, str) else json.dumps(body)
            recorded.append(capture_record(body.encode(), output["body"].encode(), content_type))
    (tmp_path / "vectors.jsonl").write_bytes(b"".join(recorded))
    server = fleet.serve("plain", "option.rolling_batch=vllm")
    url = f"{server.url}/predictions/plain"
    result = lmi("replay", "--input", str(tmp_path), "--url", url, "--compare-sampled", "--json", str(tmp_path / "r"))
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "r").read_bytes())["summary"]["outcomes"] == {"equal": len(recorded)}
    assert len(recorded) > 10


def test_dynamic_batch_success(fleet: Fleet) -> None:
    """The vector's fake `generate` ignores the limit and returns "Deep Learning is cool". Ours respects the limit."""
    vector = next(vector for vector in VECTORS if vector["case"] == "two concurrent, same parameters")
    server = fleet.serve("dyn", vector["input"]["serving.properties"] + ", option.backend=scripted")
    answer = server.invoke({"inputs": "A", "parameters": {"max_new_tokens": 2}})
    expected = vector["output"][0]["body"].replace("A Deep Learning is cool", "ADeep Learning")
    assert answer.text == expected
    assert answer.headers["Content-Type"] == "application/json"


def test_unknown_model(fleet: Fleet) -> None:
    vector = next(vector for vector in VECTORS if vector["case"] == "unknown model")
    server = fleet.serve("plain", "option.rolling_batch=vllm")
    answer = server.invoke(vector["input"]["request"]["body"], path="/predictions/nope")
    assert answer.status_code == 404
    assert answer.text == vector["output"]["body"]
