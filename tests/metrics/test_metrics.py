"""`GET /metrics`: each request is counted once, whichever worker handled it and however it ended. Counts are never lost."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, StartServer

from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidChat,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestFailed,
)
from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics.catalogue import CATALOGUE, metrics_page
from lmi_handlers.metrics.cells import Cells, totals
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.metrics.engine_info import EngineInfo
from lmi_handlers.metrics.requests import RequestMetrics, page_of
from lmi_handlers.metrics.series import Catalogue, exposition

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"
SLOW = ECHO + "option.echo_tokens_per_second=20\n"
LONG = {"inputs": "x" * 20, "stream": True, "parameters": {"max_new_tokens": 4000, "ignore_eos_token": True}}

Scrape = dict[str, float]
"""Values by series, such as `name` or `name{label="value"}`, without the model's labels."""


def parse(text: str) -> Scrape:
    """Parse the text as Prometheus does. The parser appends `_total` to all counters, which TGI's do not have."""
    series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = [
                f'{{{name}="{value}"}}' for name, value in sample.labels.items() if name not in ("model_name", "engine")
            ]
            name = sample.name if family.name.startswith(("vllm:", "lmi_")) else sample.name.removesuffix("_total")
            series["".join([name, *own])] = sample.value
    return series


def scrape(server: Server) -> Scrape:
    """Read the metrics from any worker. Each connection goes to the first worker that accepts it."""
    answer = requests.get(f"{server.url}/metrics", headers={"Connection": "close"}, timeout=30)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.text)


def wait_for(server: Server, condition: Callable[[Scrape], bool]) -> Scrape:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen = scrape(server)
        if condition(seen):
            return seen
        time.sleep(0.05)
    raise AssertionError(f"not reached within 60 s: { {name: value for name, value in seen.items() if value} }")


def outcomes(seen: Scrape) -> dict[str, float]:
    """Return the number of requests, and of each outcome."""
    names = ("tgi_request_count", "tgi_request_success", "tgi_request_failure", "vllm:request_success_total")
    counts = {name: value for name, value in seen.items() if name.startswith(names) and value}
    return {re.sub(r'.*="(.*)"}', r"\1", name.removeprefix("tgi_request_")): value for name, value in counts.items()}


def wait_for_outcomes(server: Server, before: Scrape | None = None, **expected: int) -> Scrape:
    """Wait until requests have been counted as expected, since `before`. Another worker may be just counting one."""
    return wait_for(server, lambda seen: outcomes(seen if before is None else difference(before, seen)) == expected)


def difference(before: Scrape, after: Scrape) -> Scrape:
    """Return how much counters and histograms have increased."""
    return {name: value - before[name] for name, value in after.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two workers and short limits, for tests that compare counters before and after."""
    properties = ECHO + "max_request_size=10000\noption.predict_timeout=6\noption.echo_load_seconds=3\n"
    server = Server(tmp_path_factory.mktemp("metrics") / "m", properties, "--workers", "2")
    seen = scrape(server.wait_ready())
    assert not any(value for name, value in seen.items() if not name.startswith("lmi_load_seconds")), (
        "all values are zero before the first request"
    )
    yield server
    server.stop()


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `server`, with an engine that generates 20 tokens per second and sequence."""
    server = Server(tmp_path_factory.mktemp("slow") / "m", SLOW, "--workers", "2")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `slow_server`, with room for two sequences, and for two that wait."""
    properties = f"{SLOW}option.max_rolling_batch_size=2\njob_queue_size=2\n"
    server = Server(tmp_path_factory.mktemp("narrow") / "m", properties, "--workers", "2")
    yield server.wait_ready()
    server.stop()


def leave_once_running(server: Server, data: str, content_type: str, running: int) -> None:
    """Send a request and disconnect once the engine has `running` sequences."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/invocations", data, {"Content-Type": content_type})
    server.wait_for_sequences(running)
    connection.close()


@contextlib.contextmanager
def open_streams(server: Server, count: int) -> Iterator[list[requests.Response]]:
    """Open `count` streams with long answers, and disconnect from them at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(server.invoke(LONG, stream=True))) for _ in range(count)]


# Outcomes


def test_all_documented_series_exist_before_the_first_request(server: Server) -> None:
    seen = scrape(server)  # the fixture has checked that they are zero
    names = re.findall(r"^\| `([^`]*)` \| (counter|gauge|histogram)", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    assert len(names) == len(CATALOGUE.metrics)
    for name, kind in names:
        expected = [f"{name}_sum", f"{name}_count", f'{name}_bucket{{le="+Inf"}}'] if kind == "histogram" else [name]
        assert [series for series in expected if not any(known.startswith(series) for known in seen)] == []
    assert {f'tgi_request_failure{{err="{cause}"}}' for cause in ("validation", "overloaded", "dropped")} <= seen.keys()


def test_each_request_is_counted_once_however_it_ends(server: Server) -> None:
    before = scrape(server)
    good: list[dict[str, Any]] = [
        {"inputs": "hello"},
        {"inputs": "hello", "stream": True},
        {"inputs": "hello", "parameters": {"max_new_tokens": 2}},
        {"inputs": "one two three", "stream": True, "parameters": {"stop": ["two"]}},
        {"inputs": ["one", "two"]},
        {"inputs": "hello", "parameters": {"n": 3, "do_sample": True}},
        {"inputs": "hello", "parameters": {"num_beams": 2, "max_new_tokens": 3}},  # answers with both beams
    ]
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        assert {answer.status_code for answer in pool.map(server.invoke, good * 5)} == {200}
    # A stream is counted shortly after its last byte.
    wait_for_outcomes(server, before, count=35, success=35, stop=40, length=15)

    refused = [{"inputs": "a", "parameters": {"top_p": 7}}, {"inputs": "x" * 20000}, {}]
    assert [server.invoke(body).status_code for body in refused] == [424, 413, 424]
    assert server.invoke({"inputs": "a"}, path="/predictions/nobody").status_code == 404
    assert server.invoke({"inputs": "RAISE@1"}).status_code == 424
    assert "error" in server.invoke({"inputs": "RAISE@9 and more", "stream": True}).text
    assert server.invoke({"inputs": "HANG@1"}).status_code == 504
    succeeded = {"success": 35, "stop": 40, "length": 15}
    wait_for_outcomes(server, before, count=42, **succeeded, validation=4, generation=2, error=2, timeout=1, abort=1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (InvalidRequest("no", field="inputs"), "validation"),
        (PayloadTooLarge("no"), "validation"),
        (ModelNotFound("no"), "validation"),
        (InvalidChat("no"), "template"),
        (QueueFull("no"), "overloaded"),
        (RequestFailed("no"), "generation"),
        (EngineDead("no"), "generation"),
        (ClientDisconnected("no"), "dropped"),
        (DeadlineExceeded("no"), "timeout"),
        (EngineNotReady("no"), "not_ready"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_are_counted_by_cause(tmp_path: Path, error: LMIError, cause: str) -> None:
    metrics = RequestMetrics(tmp_path / "metrics", "m")
    metrics.ended(Usage(started=time.monotonic()), error)
    assert outcomes(parse(metrics.page())) == {"count": 1, cause: 1}


def test_a_request_whose_client_disconnects_is_dropped(slow_server: Server) -> None:
    server, before = slow_server, scrape(slow_server)
    with open_streams(server, 3) as streams:
        for stream in streams:
            assert next(stream.iter_lines())
    server.wait_for_sequences(0)
    leave_once_running(server, json.dumps(LONG | {"stream": False}), "application/json", running=1)
    server.wait_for_sequences(0)
    seen = difference(before, wait_for_outcomes(server, before, count=4, dropped=4, abort=4))
    assert seen["vllm:generation_tokens_total"] >= 3
    assert seen["tgi_request_duration_count"] == 0


def test_requests_rejected_by_a_full_queue_are_overloaded(narrow_server: Server) -> None:
    server, before = narrow_server, scrape(narrow_server)
    with concurrent.futures.ThreadPoolExecutor(2) as pool, open_streams(server, 2):
        waiting = [pool.submit(server.invoke, {"inputs": "a"}) for _ in range(2)]
        wait_for(server, lambda seen: seen["vllm:num_requests_waiting"] == 2)
        assert [server.invoke({"inputs": "a"}).status_code for _ in range(3)] == [503] * 3
        wait_for_outcomes(server, before, count=3, overloaded=3)
    assert [answer.result().status_code for answer in waiting] == [200] * 2
    wait_for_outcomes(server, before, count=7, overloaded=3, dropped=2, abort=2, success=2, stop=2)


def test_requests_that_meet_a_dead_or_loading_engine(start_server: StartServer) -> None:
    # A second worker might notice the engine's death later.
    server = start_server(SLOW, "--workers", "1")
    with server.no_restart():
        with open_streams(server, 2) as streams:
            wait_for(server, lambda seen: seen["vllm:num_requests_running"] == 2)
            server.engine().kill()
            assert all("engine" in stream.text for stream in streams)
        assert server.ping().status_code == 503
        assert server.invoke({"inputs": "a"}).status_code == 503
        seen = wait_for_outcomes(server, count=3, not_ready=1, generation=2, error=2)
        assert seen["vllm:num_requests_running"] == 0
    server.wait_ready()
    assert outcomes(scrape(server)) == outcomes(seen)


def test_each_record_of_a_batch_is_a_request(narrow_server: Server) -> None:
    server, before = narrow_server, scrape(narrow_server)
    records: list[dict[str, Any]] = [{"inputs": f"r {number}"} for number in range(20)]
    records[7] = {"inputs": "bad", "parameters": {"top_p": 7}}
    records[8] = {"inputs": "RAISE@2"}
    answer = server.invoke(data=batch(records), headers={"Content-Type": "application/jsonlines"})
    assert [number for number, line in enumerate(answer.text.splitlines()) if "error" in line] == [7, 8]
    wait_for_outcomes(server, before, count=20, success=18, stop=18, validation=1, generation=1, error=1)


def test_all_records_of_a_batch_are_dropped_if_the_client_disconnects(slow_server: Server) -> None:
    server, before = slow_server, scrape(slow_server)
    records = batch([LONG | {"stream": False}] * 3)
    leave_once_running(server, records, "application/jsonlines", running=3)
    wait_for_outcomes(server, before, count=3, dropped=3, abort=3)
    server.wait_for_sequences(0)


def batch(records: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, records))


def test_other_routes_are_not_counted(server: Server) -> None:
    before = scrape(server)
    server.ping()
    assert requests.get(f"{server.url}/info", timeout=30).status_code == 200
    assert server.invoke({"inputs": "a"}, path="/tokenize").status_code == 200
    assert server.invoke({"outputs": "a"}, path="/tokenize").status_code == 422
    assert requests.head(f"{server.url}/metrics", timeout=30).status_code == 200
    assert requests.post(f"{server.url}/metrics", timeout=30).status_code == 405
    assert requests.get(f"{server.url}/nowhere", timeout=30).status_code == 404
    assert outcomes(difference(before, scrape(server))) == {}


def test_requests_to_tgis_routes_are_counted(server: Server) -> None:
    before = scrape(server)
    assert server.invoke({"inputs": "hello"}, path="/generate").status_code == 200
    assert server.invoke({"inputs": "hello", "parameters": {"top_p": 7}}, path="/generate").status_code == 422
    assert server.invoke(data=b"hello", headers={"Content-Type": "text/plain"}, path="/generate").status_code == 415
    wait_for_outcomes(server, before, count=3, success=1, stop=1, validation=2)


# Values


def test_token_counts_and_durations(slow_server: Server) -> None:
    server, before = slow_server, scrape(slow_server)
    prompts = ["a", "bc", "defgh"]
    started = time.monotonic()
    for prompt in prompts:
        assert server.invoke({"inputs": prompt}).status_code == 200
    passed = time.monotonic() - started
    seen = difference(before, scrape(server))
    for name in ("vllm:prompt_tokens_total", "vllm:request_prompt_tokens_sum", "tgi_request_input_length_sum"):
        assert seen[name] == 8
    for name in (
        "vllm:generation_tokens_total",
        "vllm:request_generation_tokens_sum",
        "tgi_request_generated_tokens_sum",
    ):
        assert seen[name] == 11  # including the end token of each
    for name in ("tgi_request_max_new_tokens_sum", "vllm:request_params_max_tokens_sum"):
        assert seen[name] == 3 * 30
    assert seen["vllm:request_prefill_kv_computed_tokens_sum"] == 8  # echo has no prefix cache
    assert seen["vllm:request_max_num_generation_tokens_sum"] == 11
    assert seen["vllm:request_params_n_sum"] == 3
    assert seen['lmi_responses_total{status="200"}'] == 3
    assert seen['vllm:request_prompt_tokens_bucket{le="1.0"}'] == 1
    assert seen['vllm:request_prompt_tokens_bucket{le="2.0"}'] == 2
    assert 1 <= seen["vllm:inter_token_latency_seconds_count"] <= 8  # not those that arrive with a first token
    sums = {name: value for name, value in seen.items() if name.endswith("_seconds_sum") or "duration_sum" in name}
    assert sums.pop("lmi_shadow_seconds_sum") == 0
    assert len(sums) == 13
    assert all(0 < value <= passed for value in sums.values())
    end_to_end = seen["vllm:e2e_request_latency_seconds_sum"]
    assert end_to_end == seen["tgi_request_duration_sum"] > (11 - 3) / 20
    first, decode = seen["vllm:time_to_first_token_seconds_sum"], seen["vllm:request_decode_time_seconds_sum"]
    assert first + decode == pytest.approx(end_to_end)
    parts = [seen[f"tgi_request_{part}_duration_sum"] for part in ("validation", "queue", "inference")]
    assert sum(parts) == pytest.approx(end_to_end)
    assert seen["vllm:inter_token_latency_seconds_sum"] <= decode


def test_sequences_of_a_request(server: Server) -> None:
    before = scrape(server)
    body = {"inputs": "one two", "parameters": {"n": 3, "do_sample": True, "max_new_tokens": 2}}
    assert server.invoke(body).status_code == 200
    seen = difference(before, scrape(server))
    assert (seen["vllm:request_params_n_sum"], seen["vllm:request_generation_tokens_sum"]) == (3, 6)
    assert seen["vllm:request_max_num_generation_tokens_sum"] == 2


def test_gauges_show_the_engines_load(narrow_server: Server) -> None:
    server = narrow_server
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        with open_streams(server, 2):
            waiting = [pool.submit(server.invoke, {"inputs": "a"}) for _ in range(2)]
            wait_for(server, lambda seen: seen["vllm:num_requests_waiting"] == 2)
            for seen in [scrape(server) for _ in range(10)]:  # from any worker
                assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (2, 2)
                assert (seen["tgi_batch_current_size"], seen["tgi_queue_size"]) == (2, 2)
        assert {answer.result().status_code for answer in waiting} == {200}
    wait_for(server, lambda seen: seen["vllm:num_requests_running"] == seen["vllm:num_requests_waiting"] == 0)


def test_requests_that_arrive_during_a_long_step_are_waiting(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        pool.submit(server.invoke, {"inputs": "SLEEP@1"})
        wait_for(server, lambda seen: seen["vllm:num_requests_running"] == 1)
        others = [pool.submit(server.invoke, {"inputs": "a"}) for _ in range(2)]
        wait_for(server, lambda seen: seen["vllm:num_requests_waiting"] == 2)
        assert {answer.result().status_code for answer in others} == {200}
    wait_for(server, lambda seen: seen["vllm:num_requests_running"] == seen["vllm:num_requests_waiting"] == 0)


def test_counters_are_kept_when_a_worker_is_killed(server: Server) -> None:
    before = scrape(server)
    for round_number in range(1, 4):
        for _ in range(10):
            assert server.invoke({"inputs": "hello"}, headers={"Connection": "close"}).status_code == 200
        workers = {worker.pid for worker in server.web_workers()}
        server.web_worker().kill()
        deadline = time.monotonic() + 120
        while len({worker.pid for worker in server.web_workers()} - workers) == 0 or len(server.web_workers()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        wait_for_outcomes(server, before, **dict.fromkeys(("count", "success", "stop"), 10 * round_number))


def test_an_engines_counters_go_on_in_the_next_engine(tmp_path: Path) -> None:
    def seen() -> Scrape:
        series = parse(exposition(CATALOGUE.metrics, [(totals(tmp_path / "metrics", CATALOGUE), {})]))
        return {name: value for name, value in series.items() if value}

    for prior in (0, 1):
        engine = EngineMetrics(tmp_path / "metrics")  # counts from 0 again
        for times in (1, 1, 2):
            engine.count(
                EngineCounters(
                    prefix_cache_queries=100 * times,
                    prefix_cache_hits=60 * times,
                    spec_decode_num_draft_tokens=8 * times,
                    spec_decode_num_accepted_tokens=5 * times,
                    num_preemptions=3 * times,
                )
            )
            assert seen() == {
                "vllm:prefix_cache_queries_total": 100 * (2 * prior + times),
                "vllm:prefix_cache_hits_total": 60 * (2 * prior + times),
                "vllm:spec_decode_num_draft_tokens_total": 8 * (2 * prior + times),
                "vllm:spec_decode_num_accepted_tokens_total": 5 * (2 * prior + times),
                "vllm:num_preemptions_total": 3 * (2 * prior + times),
            }


# Text


def test_docs_metrics_md_is_up_to_date() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page(), "run: python -m lmi_handlers.metrics.catalogue > docs/metrics.md"


def test_engines_tell_routers_of_their_cache_and_adapters(tmp_path: Path) -> None:
    """The labels are vLLM's. Routers take the adapters of the series with the latest time."""
    directory = tmp_path / "metrics"
    server = RequestMetrics(directory, "m")
    engines = [EngineMetrics(directory, replica=replica, replicas=2) for replica in range(2)]
    assert "_info" not in server.page()
    cache = EngineInfo(block_size=16, num_blocks=100)
    engines[0].set_info(msgspec.structs.replace(cache, max_loras=4, running=("a", "b")))
    engines[1].set_info(msgspec.structs.replace(cache, max_loras=4, waiting=("c",)))
    labels = '{max_lora="4",waiting_lora_adapters="c",running_lora_adapters="a,b"}'
    [since] = re.findall(rf"^vllm:lora_requests_info{re.escape(labels)} ([\d.]+)$", server.page(), re.MULTILINE)
    assert abs(float(since) - time.time()) < 3600
    for engine in "01":
        line = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="100",engine="{engine}"}} 1'
        assert line in server.page().splitlines()
    assert 'lora_requests_info{model_name="m",max_lora="4",' in page_of([server])
    EngineMetrics(directory, replica=0, replicas=2)  # it is started again
    assert 'engine="0"} 1' not in server.page()
    engines[1].set_info(cache)  # without adapters
    assert "lora_requests_info" not in server.page()


def small_catalogue() -> Catalogue:
    catalogue = Catalogue()
    catalogue.counter("tgi_a", "things", "Things.", "err", ("x", "y"))
    catalogue.gauge("vllm:b", "things", "More things.")
    catalogue.histogram("tgi_c", "seconds", "Times.", (0.5, 10))
    return catalogue


def test_the_text_format() -> None:
    metrics = small_catalogue().metrics
    assert exposition(metrics, [([1, 2.5, 3, 4, 0, 1, 15.25], {"model_name": 'a"b\\c\nd'})]) == (
        "# HELP tgi_a Things.\n"
        "# TYPE tgi_a counter\n"
        'tgi_a{err="x"} 1\n'
        'tgi_a{err="y"} 2.5\n'
        "# HELP vllm:b More things.\n"
        "# TYPE vllm:b gauge\n"
        'vllm:b{model_name="a\\"b\\\\c\\nd"} 3\n'
        "# HELP tgi_c Times.\n"
        "# TYPE tgi_c histogram\n"
        'tgi_c_bucket{le="0.5"} 4\n'
        'tgi_c_bucket{le="10.0"} 4\n'
        'tgi_c_bucket{le="+Inf"} 5\n'
        "tgi_c_sum 15.25\n"
        "tgi_c_count 5\n"
    )


@given(values=st.lists(st.floats(0, 1e12)), name=st.text())
def test_prometheus_parser_reads_the_text(values: list[float], name: str) -> None:
    histogram = small_catalogue().metrics[2]
    cells = [0.0, 0.0, 7.25, *(0.0 for _ in range(histogram.size))]
    for value in values:
        cells[histogram.first + sum(value > bound for bound in histogram.buckets)] += 1
        cells[histogram.first + 3] += value
    text = exposition(small_catalogue().metrics, [(cells, {"model_name": name})])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["vllm:b"].samples[0].labels == {"model_name": name}
    series = parse(text)
    assert series["tgi_c_count"] == len(values)
    assert series["tgi_c_sum"] == cells[-1]
    for bound in histogram.buckets:
        assert series[f'tgi_c_bucket{{le="{bound}"}}'] == sum(value <= bound for value in values)


# Cells


def test_observations_are_counted_in_their_buckets(tmp_path: Path) -> None:
    catalogue = small_catalogue()
    histogram = catalogue.metrics[2]
    cells = Cells(tmp_path / "metrics", catalogue)
    for value in (0, 0.25, 0.5, 0.75, 10, 10.5):
        cells.observe(value, histogram)
    cells.observe(1, histogram, times=10)
    assert totals(tmp_path / "metrics", catalogue) == [0, 0, 0, 3, 12, 1, 32]


PROCESS = """
import sys, time
from pathlib import Path
from lmi_handlers.metrics.cells import Cells
from lmi_handlers.metrics.catalogue import CATALOGUE, LOAD_SECONDS, REQUESTS, RUNNING

cells = Cells(Path(sys.argv[1]), CATALOGUE)
cells.set(RUNNING, 5)
cells.set(LOAD_SECONDS, 5, "loading weights")
for _ in range(1000):
    cells.add(REQUESTS)
print("done", flush=True)
time.sleep(60)
"""


def test_counters_of_a_dead_process_are_kept_but_its_gauges_are_not(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"

    def seen() -> tuple[float, ...]:
        series = parse(exposition(CATALOGUE.metrics, [(totals(directory, CATALOGUE), {})]))
        gauges = ("vllm:num_requests_running", 'lmi_load_seconds{phase="loading weights"}')
        return series["tgi_request_count"], *(series[name] for name in gauges)

    for generation in range(3):
        processes = [
            subprocess.Popen([sys.executable, "-c", PROCESS, str(directory)], stdout=subprocess.PIPE) for _ in range(2)
        ]
        with processes[0], processes[1]:
            for process in processes:  # otherwise the second would take over the file of the first
                assert process.stdout is not None
                assert process.stdout.readline() == b"done\n"
            for process, running in zip(processes, (10, 5), strict=True):
                assert seen() == (2000 * generation + 2000, running, running)
                process.kill()
                process.wait()
        assert seen() == (2000 * generation + 2000, 0, 0)
    assert len(list(directory.iterdir())) == 2
