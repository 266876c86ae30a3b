"""Receipts: what a request has used of the engine, in the log, in the answer and in the metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, StartServer
from waiting import wait_until
from websockets.sync.client import connect

from lmi_handlers.core.custom_attributes import HEADER, MAX_LENGTH, parse_attributes, render_attributes
from lmi_handlers.core.meter import Paid
from lmi_handlers.core.usage import Usage
from lmi_handlers.web.receipt import MAX_TENANT, receipt, receipt_attributes, tenant_of

TOKENS = {"prompt_tokens": 3, "cached_tokens": 0, "generated_tokens": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = "option.rolling_batch=echo\noption.receipts=true\noption.tenant_attribute=x-team\n"
    server = Server(tmp_path_factory.mktemp("receipts") / "model", properties + "option.custom_attributes=trace\n")
    yield server.wait_ready()
    server.stop()


def body(*, stream: bool = False) -> dict[str, object]:
    return {"inputs": "abc", "parameters": {"max_new_tokens": 2}, "stream": stream}


def logged(server: Server) -> list[dict[str, Any]]:
    """Return the lines of all requests."""
    lines = map(json.loads, server.log.splitlines())
    return [line for line in lines if line["message"] == "request"]


def counters(server: Server, name: str) -> dict[str, float]:
    """Return the values of a counter by its label, or by "" if it has none."""
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {"".join(sample.labels.values()): sample.value for sample in samples if sample.name == name}


def test_an_answer_has_its_receipt_and_so_has_the_log(server: Server) -> None:
    response = server.invoke(body(), headers={HEADER: "trace=7"})
    attributes = parse_attributes(response.headers[HEADER])
    assert attributes.pop("trace") == "7"
    entry = server.log_entry(response.headers["x-request-id"])
    for name, value in TOKENS.items():
        assert (entry[name], attributes.pop(f"x-lmi-{name.replace('_', '-')}")) == (value, str(value))
    for name in ("queue_ms", "engine_ms"):
        assert float(attributes.pop(f"x-lmi-{name.replace('_', '-')}")) == entry[name] >= 0
    assert not attributes


def test_a_stream_has_what_is_known_at_its_first_token(server: Server) -> None:
    response = server.invoke(body(stream=True))
    assert set(parse_attributes(response.headers[HEADER])) == {
        "x-lmi-prompt-tokens",
        "x-lmi-cached-tokens",
        "x-lmi-queue-ms",
    }
    entry = server.log_entry(response.headers["x-request-id"])
    assert entry["generated_tokens"] == 2
    assert entry["engine_ms"] >= 0


def test_tenants_are_counted_by_the_attribute_or_the_header(server: Server) -> None:
    answers = [
        server.invoke(body(), headers={HEADER: "x-team=red", "x-team": "blue"}),
        server.invoke(body(stream=True), headers={"X-Team": "red"}),
        server.invoke(body(), headers={"x-team": 'a"b\\c{}' + "d" * 100}),
        server.invoke({"inputs": 1}, headers={"x-team": "red"}),  # refused, but counted
    ]
    entries = [server.log_entry(answer.headers["x-request-id"]) for answer in answers]
    assert [entry["tenant"] for entry in entries] == ["red", "red", ('a"b\\c{}' + "d" * 100)[:MAX_TENANT], "red"]
    assert counters(server, "lmi_tenant_requests_total") == {"red": 3, entries[2]["tenant"]: 1}
    assert counters(server, "lmi_tenant_generated_tokens_total")["red"] == 4
    by_tenant = counters(server, "lmi_tenant_engine_seconds_total")
    assert sum(by_tenant.values()) > 0
    assert "tenant" not in server.log_entry(server.invoke(body()).headers["x-request-id"])


def test_a_handshake_names_the_tenant_of_its_messages(server: Server) -> None:
    address = f"ws://127.0.0.1:{server.port}/invocations-bidirectional-stream"
    for headers in ({"X-Team": "green"}, {HEADER: "x-team=green", "X-Team": "blue"}):
        with connect(address, additional_headers=headers) as client:
            client.send(json.dumps(body()))
            assert client.recv(60) == '{"generated_text": "ab"}'
        wait_until(lambda: logged(server)[-1].get("tenant") == "green")
    assert counters(server, "lmi_tenant_generated_tokens_total")["green"] == 4


def test_receipts_add_up_to_less_than_the_engine_has_worked(server: Server) -> None:
    server.invoke(body())

    def used_and_busy() -> tuple[float, float]:
        [used], [busy] = (
            counters(server, "lmi_engine_seconds_total").values(),
            counters(server, "lmi_engine_busy_seconds_total").values(),
        )
        return used, busy

    wait_until(lambda: 0 < used_and_busy()[0] <= used_and_busy()[1] + 1e-6)  # the engine reports it after a moment


def test_own_code_pays_for_its_calls(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "model.py").write_text(
        "import time\nfrom djl_python import Output\n\n\n"
        "def handle(inputs):\n"
        "    if not inputs.is_empty():\n"
        "        time.sleep(0.05)\n"
        "        if b'wrong' in inputs.get_as_bytes():\n"
        "            raise ValueError('wrong')\n"
        "    return Output().add('a text')\n"
    )
    server = start_server("option.tenant_attribute=team\n")
    for text, status in (("right", 200), ("wrong", 424)):
        response = server.invoke(text, headers={HEADER: "team=red", "Content-Type": "text/plain"})
        assert response.status_code == status
    wait_until(lambda: len(logged(server)) == 2)
    for entry in logged(server):
        assert entry["engine_ms"] >= 50
        assert entry["tenant"] == "red"
    assert counters(server, "lmi_tenant_engine_seconds_total")["red"] >= 0.1


@pytest.mark.parametrize(
    ("name", "attributes", "headers", "tenant"),
    [
        ("team", {"team": "a"}, {"team": "b"}, "a"),
        ("team", {"team": ""}, {"team": " b "}, "b"),
        ("team", {}, {}, ""),
        ("team", {"team": "a\nlmi_fake 1\x7f\u00e9"}, {}, "a?lmi_fake 1??"),
        ("authorization", {}, {"authorization": "Bearer abc"}, "******"),
    ],
)
def test_a_tenant_is_safe_to_log(name: str, attributes: dict[str, str], headers: dict[str, str], tenant: str) -> None:
    assert tenant_of(name, attributes, headers.get)[0] == tenant


@pytest.mark.parametrize(
    ("name", "values"), [("team", ("a" * 64 + "b", "a" * 65)), ("team", ("é", "ü")), ("authorization", ("b", "c"))]
)
def test_tenants_that_look_equal_differ(name: str, values: tuple[str, str]) -> None:
    (shown, digest), (other_shown, other_digest) = (tenant_of(name, {}, {name: value}.get) for value in values)
    assert shown == other_shown
    assert digest != other_digest


def test_blocks_are_measured_or_estimated_or_unknown() -> None:
    usage = Usage(started=time.monotonic(), prompt_tokens=30, generated_tokens=20, samples=2, sequences=2)
    assert "kv_block_seconds" not in receipt(usage)
    assert "kv_block_seconds_estimate" not in receipt(usage)
    usage.block_size, usage.validation_time, usage.queue_time, usage.last_token_time = 10, 0.5, 0.5, 3.0
    assert receipt(usage)["kv_block_seconds_estimate"] == 2 * (30 * 2 + 20 / 2) / 10
    usage.kv_block_time = 7.0
    assert receipt(usage)["kv_block_seconds"] == 7.0
    assert "kv_block_seconds_estimate" not in receipt(usage)


def test_who_pays_the_rest_has_the_estimate_of_the_time_that_is_not_paid() -> None:
    usage = Usage(started=0.0, prompt_tokens=30, generated_tokens=20, sequences=1, block_size=10, joined=True)
    usage.validation_time, usage.queue_time, usage.last_token_time = 0.5, 0.5, 3.0
    seconds = {}
    for name, paid in {
        "nothing": None,
        "all": Paid(),
        "rest": Paid(8, 1.5, overlap=0.5),
        "end": Paid(20, 3, None, 9),
    }.items():
        usage.paid = paid
        seconds[name] = receipt(usage)["kv_block_seconds_estimate"]
    assert seconds == {"nothing": 0.0, "all": 2 * 4.0, "rest": 1.5 * 4.0, "end": 0.0}


def test_the_longest_receipt_fits() -> None:
    most = 10**12
    usage = Usage(
        started=0.0,
        prompt_tokens=most,
        cached_tokens=most,
        generated_tokens=most,
        queue_time=1.1 * most,
        engine_time=1.1 * most,
        kv_block_time=1.1 * most,
    )
    attributes = receipt_attributes(usage, complete=True)
    assert parse_attributes(render_attributes(attributes)) == attributes
    assert len(render_attributes(attributes)) < MAX_LENGTH / 2
    beside = {"trace": "7", "long": "x" * MAX_LENGTH, **attributes}
    assert parse_attributes(render_attributes(beside)) == {"trace": "7", **attributes}
