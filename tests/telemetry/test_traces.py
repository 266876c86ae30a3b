"""OpenTelemetry: a collector gets a true trace of every request, whatever its dialect, and all metrics."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics.export import NumberDataPoint
from otlp_collector import Collector, attributes
from serving import Server, StartServer
from waiting import wait_until

from lmi_handlers.metrics.catalogue import CATALOGUE, REQUESTS
from lmi_handlers.telemetry.otlp_metrics import OtlpMetrics

SECRET = "Xylophone"
"""In every prompt. No span may have it."""

PHASES = ["tokenize", "queue", "prefill", "decode", "format"]
CHAT = [{"role": "user", "content": SECRET}]
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lmi": ("/invocations", {"inputs": SECRET}),
    "tgi": ("/generate", {"inputs": SECRET}),
    "openai": ("/v1/chat/completions", {"messages": CHAT}),
    "mindie": ("/", {"inputs": SECRET}),
    "aleph_alpha": ("/complete", {"model": "m", "prompt": SECRET, "maximum_tokens": 20}),
    "lmi-stream": ("/invocations", {"inputs": SECRET, "stream": True}),
    "tgi-stream": ("/generate_stream", {"inputs": SECRET}),
    "openai-stream": ("/v1/chat/completions", {"messages": CHAT, "stream": True}),
    "mindie-stream": ("/", {"inputs": SECRET, "stream": True}),
    "aleph_alpha-stream": ("/complete", {"model": "m", "prompt": SECRET, "maximum_tokens": 20, "stream": True}),
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tells the collector about itself without delay."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_SERVICE_NAME": "chat",
    }
    properties = (
        "option.rolling_batch=echo\noption.echo_faults=true\noption.dialect=mindie\noption.server_timing=true\n"
        "option.echo_tokens_per_second=200\n"
    )
    server = Server(tmp_path_factory.mktemp("traced") / "m", properties, "--workers", "1", environ=environ)
    yield server.wait_ready()
    server.stop()


def trace(collector: Collector, trace_id: str) -> tuple[Span, list[Span]]:
    """Wait for the spans of a trace. Return the server's and the phases', in order. The server's comes last."""

    def found() -> list[Span]:
        return [span for span in collector.spans() if span.trace_id.hex() == trace_id]

    wait_until(lambda: any(span.kind == Span.SPAN_KIND_SERVER for span in found()))
    (root,) = [span for span in found() if span.kind == Span.SPAN_KIND_SERVER]
    children = [span for span in found() if span.parent_span_id == root.span_id]
    return root, sorted(children, key=lambda span: (span.start_time_unix_nano, PHASES.index(span.name)))


_numbers = itertools.count(1)


def traceparent() -> tuple[str, str]:
    """Return a header of a client's, and its trace id, which no other has."""
    trace_id = f"{next(_numbers):032x}"
    return f"00-{trace_id}-00f067aa0ba902b7-01", trace_id


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_traced(server: Server, collector: Collector, dialect: str) -> None:
    path, body = DIALECTS[dialect]
    header, trace_id = traceparent()
    answer = server.invoke(body, path=path, headers={"traceparent": header, "x-request-id": f"r-{dialect}"})
    assert answer.status_code == 200
    root, children = trace(collector, trace_id)
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert root.name == f"POST {path}"
    assert root.status.code == Status.STATUS_CODE_UNSET

    assert [span.name for span in children] == PHASES
    assert children[0].start_time_unix_nano - root.start_time_unix_nano < 1e10, "the body arrived with the head"
    assert children[-1].end_time_unix_nano == pytest.approx(root.end_time_unix_nano, abs=1e6)
    for span, following in itertools.pairwise(children):
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert following.start_time_unix_nano == pytest.approx(span.end_time_unix_nano, abs=1000)

    entry = server.log_entry(f"r-{dialect}")
    known = attributes(list(root.attributes))
    assert entry["trace_id"] == trace_id
    assert known["gen_ai.request.id"] == f"r-{dialect}"
    assert known["http.response.status_code"] == 200
    for name, tokens in (("input", entry["prompt_tokens"]), ("output", entry["generated_tokens"])):
        assert known[f"gen_ai.usage.{name}_tokens"] == tokens > 0
    assert known["gen_ai.operation.name"] == ("chat" if "messages" in body else "text_completion")
    assert known["gen_ai.request.model"] == server.name
    assert known["gen_ai.request.stream"] == ("stream" in dialect)
    assert known["gen_ai.latency.time_to_first_token"] == pytest.approx(entry["first_token_ms"] / 1000, abs=1e-3)
    decode = children[3].end_time_unix_nano - children[3].start_time_unix_nano
    generation = children[3].end_time_unix_nano - children[2].start_time_unix_nano
    assert generation >= 1e9 / 200 * (entry["generated_tokens"] - 1), "the time that the engine takes"
    assert decode / 1e9 == pytest.approx(known["gen_ai.latency.time_in_model_decode"], abs=1e-3)


def test_spans_never_have_a_prompt(server: Server, collector: Collector) -> None:
    header, trace_id = traceparent()
    body = {"inputs": f"{SECRET} RAISE@3", "stream": True}
    assert SECRET[:2] in server.invoke(body, headers={"traceparent": header}).text
    trace(collector, trace_id)
    assert not [body for path, body in collector.bodies if SECRET.encode() in body]
    (names,) = {
        str(attributes(list(resource.resource.attributes))["service.name"])
        for request in collector.trace_requests()
        for resource in request.resource_spans
    }
    assert names == "chat"


@pytest.mark.parametrize(
    ("body", "status", "error", "code", "phases"),
    [
        ({"inputs": "a", "parameters": {"top_p": 7}}, 424, "InvalidRequest", Status.STATUS_CODE_UNSET, []),
        ({"inputs": "RAISE@1"}, 424, "RequestFailed", Status.STATUS_CODE_ERROR, PHASES[:2]),
        ({"inputs": "RAISE@3 x", "stream": True}, 200, "RequestFailed", Status.STATUS_CODE_ERROR, PHASES[:4]),
    ],
    ids=["rejected", "failed", "stream"],
)
def test_traces_of_failures(
    server: Server,
    collector: Collector,
    body: dict[str, Any],
    status: int,
    error: str,
    code: int,
    phases: list[str],
) -> None:
    header, trace_id = traceparent()
    assert server.invoke(body, headers={"traceparent": header}).status_code == status
    root, children = trace(collector, trace_id)
    assert attributes(list(root.attributes))["error.type"] == error
    assert root.status.code == code
    assert root.status.message == ""
    assert [span.name for span in children] == phases


def test_a_client_that_leaves(server: Server, collector: Collector) -> None:
    header, trace_id = traceparent()
    body = {"inputs": SECRET, "stream": True, "parameters": {"max_new_tokens": 4000, "ignore_eos_token": True}}
    with server.invoke(body, headers={"traceparent": header}, stream=True) as answer:
        assert next(answer.iter_lines())
    root, children = trace(collector, trace_id)
    assert attributes(list(root.attributes))["error.type"] == "ClientDisconnected"
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert [span.name for span in children] == PHASES[:4]


def test_a_request_that_has_joined_an_answer_says_so(server: Server, collector: Collector) -> None:
    joined = []
    for _ in range(2):
        header, trace_id = traceparent()
        headers = {"traceparent": header, "Idempotency-Key": "traced"}
        assert server.invoke({"inputs": "hello"}, headers=headers).status_code == 200
        joined.append(attributes(list(trace(collector, trace_id)[0].attributes)).get("lmi.joined", False))
    assert joined == [False, True]


@pytest.mark.parametrize("text", ["tenant=7;traceparent=%s", '{"traceparent": "%s"}'], ids=["list", "object"])
def test_sagemaker_passes_the_context_in_custom_attributes(server: Server, collector: Collector, text: str) -> None:
    header, trace_id = traceparent()
    custom = {"X-Amzn-SageMaker-Custom-Attributes": text % header}
    assert server.invoke({"inputs": "hello"}, headers=custom).status_code == 200
    assert trace(collector, trace_id)[0].parent_span_id.hex() == "00f067aa0ba902b7"


@pytest.mark.parametrize("header", ["", "00-xyz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\u00ff" * 55])
def test_contexts_that_are_none_begin_a_trace(server: Server, collector: Collector, header: str) -> None:
    request_id = f"none-{header[:5].encode().hex()}-{len(header)}"
    headers = {"traceparent": header.encode("latin-1"), "x-request-id": request_id}
    assert server.invoke({"inputs": "hello"}, headers=headers).status_code == 200
    root, children = trace(collector, server.log_entry(request_id)["trace_id"])
    assert root.parent_span_id == b""
    assert len(children) == len(PHASES)


def test_a_context_that_is_not_sampled_is_not_recorded(server: Server, collector: Collector) -> None:
    header, trace_id = traceparent()
    assert server.invoke({"inputs": "hello"}, headers={"traceparent": f"{header[:-2]}00"}).status_code == 200
    later, later_id = traceparent()
    assert server.invoke({"inputs": "hello"}, headers={"traceparent": later}).status_code == 200
    trace(collector, later_id)
    assert not [span for span in collector.spans() if span.trace_id.hex() == trace_id]


def test_concurrent_requests_have_traces_of_their_own(server: Server, collector: Collector) -> None:
    def traced(_: int) -> list[str]:
        header, trace_id = traceparent()
        assert server.invoke({"inputs": "hello"}, headers={"traceparent": header}).status_code == 200
        return [span.name for span in trace(collector, trace_id)[1]]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert [*pool.map(traced, range(64))] == [PHASES] * 64


def test_server_timing(server: Server) -> None:
    def timing(answer: requests.Response) -> dict[str, float]:
        entries = [entry.split(";dur=") for entry in answer.headers["Server-Timing"].split(", ")]
        return {name: float(milliseconds) for name, milliseconds in entries}

    whole = timing(server.invoke({"inputs": "hello"}))
    assert [*whole] == [*PHASES, "total"]
    assert sum(whole[name] for name in PHASES) == pytest.approx(whole["total"], abs=0.3)
    assert whole["prefill"] + whole["decode"] > 24, "six tokens at 200 per second"
    assert [*timing(server.invoke({"inputs": "hello", "stream": True}))] == PHASES[:3]
    assert "Server-Timing" not in server.invoke({"inputs": "a", "parameters": {"top_p": 7}}).headers


def test_metrics_are_those_of_the_page(server: Server, collector: Collector) -> None:
    assert server.invoke({"inputs": "hello"}).status_code == 200
    requests_so_far = 0

    def up_to_date() -> bool:
        nonlocal requests_so_far
        page = requests.get(f"{server.url}/metrics", timeout=20).text
        requests_so_far = int(page.split("\ntgi_request_count ")[1].split()[0])
        if not (exported := collector.metrics()):
            return False
        points = exported["tgi_request_count"].sum.data_points
        return int(points[0].as_double) == requests_so_far

    wait_until(up_to_date)
    seen = collector.metrics()
    assert [*seen] == [metric.name for metric in CATALOGUE.metrics]
    labels = {"model_name": server.name, "engine": "0"}
    latency = seen["vllm:e2e_request_latency_seconds"]
    (point,) = latency.histogram.data_points
    assert latency.unit == "s"
    assert attributes(list(point.attributes)) == labels
    assert point.count == sum(point.bucket_counts) > 20
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.sum > 0
    assert not point.HasField("min")
    (running,) = seen["vllm:num_requests_running"].gauge.data_points
    assert attributes(list(running.attributes)) == labels
    assert seen["tgi_request_count"].sum.is_monotonic
    causes = {attributes(list(p.attributes))["err"]: p.as_double for p in seen["tgi_request_failure"].sum.data_points}
    assert causes["validation"] >= 1


def test_a_worker_that_replaces_another_traces_too(server: Server, collector: Collector) -> None:
    (before,) = server.web_workers()
    before.kill()
    wait_until(lambda: server.web_workers() not in ([], [before]))
    server.wait_ready()
    header, trace_id = traceparent()
    assert server.invoke({"inputs": "hello"}, headers={"traceparent": header}).status_code == 200
    assert len(trace(collector, trace_id)[1]) == len(PHASES)


# Collectors that are slow, and servers that end


def test_what_is_left_is_sent_at_the_end(start_server: StartServer) -> None:
    collector = Collector()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
        "OTEL_METRIC_EXPORT_INTERVAL": "600000",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
    }
    server = start_server("option.rolling_batch=echo\n", "--workers", "1", environ=environ)
    header, trace_id = traceparent()
    answers = [server.invoke({"inputs": "hello"}, headers={"traceparent": header}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not [span for span in collector.spans() if span.trace_id.hex() == trace_id]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0
    assert len([span for span in collector.spans() if span.trace_id.hex() == trace_id]) == 3 * (1 + len(PHASES))
    (point,) = collector.metrics()["tgi_request_count"].sum.data_points
    assert point.as_double == 3
    collector.close()


def test_a_period_that_was_not_sent_belongs_to_the_next_one() -> None:
    metrics = OtlpMetrics("m", delta=True)

    def grown(count: float) -> float:
        cells = [0.0] * CATALOGUE.size
        cells[REQUESTS.first] = count
        (resource,) = metrics.data(cells).resource_metrics
        (found,) = [metric for metric in resource.scope_metrics[0].metrics if metric.name == REQUESTS.name]
        (point,) = found.data.data_points
        assert isinstance(point, NumberDataPoint)
        return point.value

    assert [grown(2), grown(5)] == [2, 5]
    metrics.mark_sent()
    assert grown(7) == 2


@pytest.mark.long
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refuses"])
def test_no_request_waits_for_a_collector(start_server: StartServer, hangs: bool) -> None:
    collector = Collector()
    collector.hangs.set()
    if not hangs:
        collector.close()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_BSP_MAX_QUEUE_SIZE": "16",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    server = start_server("option.rolling_batch=echo\n", "--workers", "1", environ=environ)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: server.invoke({"inputs": "hello"}), range(200))
        assert {answer.status_code for answer in answers} == {200}
    assert server.ping().status_code == 200
    slowest = max(
        float(line.split('"total_ms":')[1].split(",")[0].split("}")[0])
        for line in server.log.splitlines()
        if '"total_ms"' in line
    )
    assert slowest < 9000, "an export gives up after 10 seconds"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(40) == 0, "the collector does not delay the end, either"
    assert "process ended" not in server.log, "the end of the engine is no failure"
    if hangs:
        collector.close()


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"OTEL_SDK_DISABLED": "true"},
        pytest.param({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, marks=pytest.mark.long),
    ],
    ids=["unset", "disabled", "none"],
)
def test_nothing_is_imported_unless_asked_for(start_server: StartServer, environ: dict[str, str]) -> None:
    if environ:
        environ = environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    server = start_server("option.rolling_batch=echo\n", environ=environ)
    assert server.invoke({"inputs": "hello"}).status_code == 200
    for process in (*server.web_workers(), server.supervisor()):
        maps = [mapped.path for mapped in process.memory_maps()]
        assert len(maps) > 10
        assert not [path for path in maps if f"{os.sep}google{os.sep}" in path], "protobuf's library"
