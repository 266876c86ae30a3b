"""Requests that are repeated: one generation for all attempts, whatever the client is."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import requests
from botocore.config import Config
from runtime_client import runtime_client
from serving import Server
from waiting import wait_until
from werkzeug.datastructures import Headers

from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner, Usage
from lmi_handlers.web.identity import ATTRIBUTE, IDEMPOTENCY_KEY, INFERENCE_ID, SESSION_ID, identify

RATE = 10
SECONDS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two web workers in front of an engine that is slower than the clients wait."""
    properties = f"option.rolling_batch=echo\noption.echo_tokens_per_second={RATE}\noption.retry_grace=300\n"
    properties += "option.tenant_attribute=team\n"
    started = Server(tmp_path_factory.mktemp("retries") / "m", properties, "--local-runtime", "--workers", "2")
    yield started.wait_ready()
    started.stop()


def counted(server: Server, name: str) -> int:
    page = requests.get(f"{server.url}/metrics", headers={"Connection": "close"}, timeout=60).text
    return int(float(re.findall(rf"^{name}(?:{{.*}})? (.*)$", page, re.MULTILINE)[0]))


def settled(server: Server, name: str) -> int:
    """The counter's value once the answers of earlier tests, which may be counted half a second later, are all in it."""
    values = [-1, counted(server, name)]
    while values[-1] != values[-2]:
        time.sleep(1)
        values.append(counted(server, name))
    return values[-1]


def body(text: str, tokens: int = RATE * SECONDS) -> dict[str, Any]:
    return {"inputs": text, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}}


def test_boto3_that_gives_up_and_tries_again_costs_one_generation(server: Server) -> None:
    sent: list[str] = []

    def identify(params: dict[str, Any], **_: object) -> None:
        params.setdefault("InferenceId", str(uuid.uuid4()))

    def note(request: Any, **_: object) -> None:
        sent.append(request.headers["X-Amzn-SageMaker-Inference-Id"])

    tokens = settled(server, "vllm:generation_tokens_total")
    joined = counted(server, "lmi_joined_requests_total")
    ended = counted(server, "tgi_request_count")
    with closing(runtime_client(server.url, config=Config(read_timeout=2))) as runtime:
        runtime.meta.events.register("before-parameter-build.sagemaker-runtime", identify)
        runtime.meta.events.register("before-send.sagemaker-runtime", note)
        answer = runtime.invoke_endpoint(
            EndpointName="e", ContentType="application/json", Body=json.dumps(body("abc")).encode()
        )
        assert json.load(answer["Body"]) == {"generated_text": "abc" * RATE}
    assert len(sent) > 1
    assert len(set(sent)) == 1
    wait_until(lambda: counted(server, "tgi_request_count") - ended == len(sent))
    wait_until(lambda: counted(server, "vllm:generation_tokens_total") - tokens >= RATE * SECONDS)
    assert counted(server, "vllm:generation_tokens_total") - tokens == RATE * SECONDS
    assert counted(server, "lmi_joined_requests_total") - joined == len(sent) - 1


def test_stream_that_broke_is_told_from_its_beginning(server: Server) -> None:
    """The second client gets all of the answer, and a third one gets it after its end."""
    ids = [str(uuid.uuid4()) for _ in range(3)]
    headers = [{"x-request-id": request_id, IDEMPOTENCY_KEY: ids[0], "team": "red"} for request_id in ids]
    asked = body("xyz") | {"stream": True}
    with server.invoke(asked, headers=headers[0], stream=True) as broken:
        next(broken.iter_lines())
    for attempt in headers[1:]:
        with server.invoke(asked, headers=attempt, stream=True) as stream:
            assert stream.headers["x-request-id"] == attempt["x-request-id"]
            records = [json.loads(line) for line in stream.iter_lines() if line]
        assert "".join(record["token"]["text"] for record in records) == "xyz" * RATE
        assert records[-1]["generated_text"] == "xyz" * RATE
    entries = [server.log_entry(request_id) for request_id in ids]
    assert [entry.get("joined", False) for entry in entries] == [False, True, True]
    assert [entry["generated_tokens"] for entry in entries[1:]] == [RATE * SECONDS] * 2
    assert entries[2]["finish_reasons"] == ["length"]
    assert entries[1]["engine_ms"] > 0 == entries[2]["engine_ms"], "the second one has paid all that the first had not"
    assert entries[0]["generated_tokens"] <= counted(server, "lmi_tenant_generated_tokens_total") <= RATE * SECONDS
    wait_until(lambda: counted(server, "lmi_tenant_generated_tokens_total") > RATE * SECONDS // 2)
    assert counted(server, "lmi_tenant_prompt_tokens_total") == len("xyz")


def test_request_without_an_identity_joins_nothing(server: Server) -> None:
    tokens = settled(server, "vllm:generation_tokens_total")
    joined = counted(server, "lmi_joined_requests_total")
    for _ in range(2):
        assert server.invoke(body("q", 2), headers={"x-request-id": "the same"}).ok
    for number in range(2):
        assert server.invoke(body("q", 2), headers={INFERENCE_ID: f"another {number}"}).ok
    wait_until(lambda: counted(server, "vllm:generation_tokens_total") - tokens == 8)
    assert counted(server, "lmi_joined_requests_total") == joined


def test_details_show_the_seed_of_the_answer(server: Server) -> None:
    """TGI's show one even if the request has none."""
    parameters = {"do_sample": True, "details": True, "max_new_tokens": 3}
    asked = {"inputs": "abc", "parameters": parameters}
    joined = counted(server, "lmi_joined_requests_total")
    first, second = (
        server.invoke(asked, path="/generate", headers={IDEMPOTENCY_KEY: "seeds"}).json() for _ in range(2)
    )
    assert first == second
    assert isinstance(first["details"]["seed"], int)
    wait_until(lambda: counted(server, "lmi_joined_requests_total") == joined + 1)


def test_stop_strings_and_n_are_those_of_each_client(server: Server) -> None:
    """The engine does not see stop strings: whoever joins finds them in what it gets."""
    asked = {"model": "m", "prompt": "hello world", "n": 2, "stop": ["wor"], "max_tokens": 11, "temperature": 1}
    answers = [
        server.invoke(asked, path="/v1/completions", headers={IDEMPOTENCY_KEY: "stops"}).json() for _ in range(2)
    ]
    assert [choice["text"] for choice in answers[0]["choices"]] == ["hello "] * 2
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"] == answers[1]["usage"]
    assert answers[0]["id"] != answers[1]["id"]


GREEDY, SEEDED, RANDOM = SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams()
NOBODYS = Usage(started=0.0)


def identified(
    params: SamplingParams,
    headers: dict[str, str],
    attributes: dict[str, str] | None = None,
    usage: Usage = NOBODYS,
    *,
    has_random_seed: bool = False,
) -> GenerationRequest:
    request = GenerationRequest(request_id="r", prompts=(), sampling_params=params, has_random_seed=has_random_seed)
    return identify(request, Headers(headers), attributes or {}, usage)


@pytest.mark.parametrize(
    ("params", "headers", "attributes", "has_one"),
    [
        (GREEDY, {}, {}, False),
        (GREEDY, {"x-request-id": "a"}, {"other": "a"}, False),
        (RANDOM, {IDEMPOTENCY_KEY: "a"}, {}, True),
        (RANDOM, {INFERENCE_ID: "a"}, {}, True),
        (RANDOM, {}, {ATTRIBUTE: "a"}, True),
        (RANDOM, {SESSION_ID: "a"}, {}, False),
        (GREEDY, {SESSION_ID: "a"}, {}, True),
        (SEEDED, {SESSION_ID: "a"}, {}, True),
        (GREEDY, {SESSION_ID: "NEW_SESSION"}, {}, False),
    ],
)
def test_identity(params: SamplingParams, headers: dict[str, str], attributes: dict[str, str], has_one: bool) -> None:
    assert (identified(params, headers, attributes).identity is not None) is has_one


def test_identities_of_two_keys_and_of_two_tenants_differ() -> None:
    names = ("blue", "red")
    owners = [Usage(0.0, key_label=name) for name in names] + [Usage(0.0, tenant_digest=name) for name in names]
    identities = {identified(RANDOM, {INFERENCE_ID: "a"}, None, owner).identity for owner in owners}
    assert len(identities) == 4
    assert identified(RANDOM, {INFERENCE_ID: "a"}, None, owners[0]).owner == owners[0].owner == Owner("blue")


def test_seed_that_the_server_chooses_is_the_same_for_all_attempts() -> None:
    """TGI's details show one. A client's own seed stays."""
    chosen = [
        identified(SamplingParams(seed=drawn), {INFERENCE_ID: name}, has_random_seed=True).sampling_params.seed
        for name, drawn in (("a", 5), ("a", 6), ("b", 5))
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert identified(SEEDED, {INFERENCE_ID: "a"}).sampling_params == SEEDED
    assert identified(SamplingParams(seed=5), {SESSION_ID: "a"}, has_random_seed=True).identity is None
