"""`lmi bench`: requests in each API, open and closed loops, and figures that can be trusted."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import msgspec
import numpy
import pytest
from serving import API_KEY, ENVIRON, Server, StartServer

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.bench.load import OfferedLoad, Timing, send
from lmi_handlers.tools.bench.page import as_page
from lmi_handlers.tools.bench.report import make_report
from lmi_handlers.tools.bench.workload import Item, Lengths, arrival_gaps, items_of_file, random_items

WORDS = Item("one two three four five six", 8)


def run(server: Server, api: str, item: Item = WORDS, **given: object) -> tuple[list[Timing], float]:
    load = OfferedLoad(url=server.url, api=api, model="", items=iter([item] * 1000), concurrency=4, requests=8)
    return asyncio.run(send(msgspec.structs.replace(load, **given)))


@pytest.mark.parametrize("api", ["openai-chat", "responses", "openai", "lmi", "tgi", "aleph-alpha", "anthropic"])
def test_each_api(echo_server: Server, api: str) -> None:
    timings, duration = run(echo_server, api)
    report = make_report(timings, duration, {})
    assert (report.completed, report.failed) == (8, 0)
    counts = api != "aleph-alpha"  # which sends no count, so that events are counted
    assert report.output_tokens == 64 if counts else 8 <= report.output_tokens <= 64
    assert 1 <= report.max_concurrency <= 4
    for timing in timings:
        assert 1 <= len(timing.arrivals) <= 8
        assert timing.started <= timing.arrivals[0] <= timing.arrivals[-1] <= timing.ended


def test_mindie(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.dialect=mindie\n")
    timings, _ = run(server, "mindie")
    assert [(timing.error, timing.num_tokens) for timing in timings] == [(None, 8)] * 8


def test_failures_are_counted_with_their_cause(echo_server: Server, guarded_server: Server) -> None:
    timings, duration = run(guarded_server, "openai")
    report = make_report(timings, duration, {})
    assert (report.completed, report.failed, report.ttft_ms) == (0, 8, None)
    assert [error[:4] for error in report.errors] == ["401:"]
    timings, _ = run(guarded_server, "openai", headers={"Authorization": f"Bearer {API_KEY}"})
    assert {timing.error for timing in timings} == {None}
    timings, _ = run(echo_server, "tgi", Item("a b RAISE@2 c d e f", 8))
    assert all(timing.error for timing in timings)
    load = OfferedLoad(
        url="http://127.0.0.1:1", api="lmi", model="", items=iter([WORDS] * 9), concurrency=1, requests=1, timeout=5
    )
    (refused,), _ = asyncio.run(send(load))
    assert refused.error is not None
    assert refused.error.startswith("ClientConnectorError")


def test_the_last_line_of_a_stream_needs_no_end() -> None:
    event = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 7}}'

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(event)))
            self.end_headers()
            self.wfile.write(event)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = OfferedLoad(
            url=f"http://127.0.0.1:{server.server_port}",
            api="openai",
            model="",
            items=iter([WORDS]),
            concurrency=1,
            requests=1,
        )
        (timing,), _ = asyncio.run(send(load))
        server.shutdown()
    assert (timing.error, len(timing.arrivals), timing.num_tokens) == (None, 1, 7)


def test_redirections_are_not_followed() -> None:
    """The key would go along, and a POST become a GET, whose answer is another one."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            asked.append(self.path)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = OfferedLoad(
            url=f"http://127.0.0.1:{server.server_port}",
            api="openai",
            model="",
            items=iter([WORDS]),
            concurrency=1,
            requests=1,
        )
        (timing,), _ = asyncio.run(send(load))
        server.shutdown()
    assert (timing.error, asked) == ("307: /elsewhere", ["/v1/completions"])


@pytest.mark.parametrize("charset", ["zlib", "idna"])
def test_an_error_in_an_encoding_that_is_none(charset: str) -> None:
    """Python has such encodings, but not for text. They ended the command with a traceback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(500)
            self.send_header("Content-Type", f"text/plain; charset={charset}")
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"no\xff go")

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = OfferedLoad(
            url=f"http://127.0.0.1:{server.server_port}",
            api="openai",
            model="",
            items=iter([WORDS]),
            concurrency=1,
            requests=1,
        )
        (timing,), _ = asyncio.run(send(load))
        server.shutdown()
    assert timing.error == "500: no\ufffd go"


def test_an_open_loop_does_not_wait_for_answers(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.echo_tokens_per_second=3\n")
    slow, slower = Item("a b c d e f", 4), Item("a b c d e f", 10)  # one second each, and three
    timings, _ = run(server, "openai", slower, gaps=iter([0.02] * 100), concurrency=0, requests=10)
    assert max(timing.started for timing in timings) < min(timing.ended for timing in timings)
    timings, _ = run(server, "openai", slow, gaps=iter([0.02] * 100), concurrency=2, requests=4)
    assert sorted(timing.ended for timing in timings)[0] <= sorted(timing.started for timing in timings)[2]
    timings, _ = run(server, "openai", slower, duration=2, requests=1000)
    assert len(timings) == 4
    assert all(timing.error is None for timing in timings)


def test_the_figures() -> None:
    timings = [
        Timing(0.0, 1.0, [0.2, 0.4, 1.0], prompt_tokens=10, output_tokens=5),
        Timing(0.5, 2.0, [1.5], prompt_tokens=20, output_tokens=1),
        Timing(1.0, 1.1, [], error="503: busy"),  # the first one has just ended
    ]
    report = make_report(timings, 2.0, {"ttft": 500, "e2el": 1000})
    assert (report.completed, report.failed, report.errors) == (2, 1, {"503: busy": 1})
    assert (report.input_tokens, report.output_tokens, report.max_concurrency) == (30, 6, 2)
    assert (report.requests_per_second, report.output_tokens_per_second, report.total_tokens_per_second) == (1, 3, 18)
    assert report.goodput_requests_per_second == 0.5
    assert report.ttft_ms is not None
    assert report.tpot_ms is not None
    assert report.itl_ms is not None
    assert (report.ttft_ms.mean, report.ttft_ms.percentiles["p75"]) == pytest.approx((600, 800))
    assert report.tpot_ms.mean == pytest.approx(200)
    assert (report.itl_ms.min, report.itl_ms.max) == pytest.approx((200, 600))
    page = as_page(report, timings, {"url": "<b>"})
    assert page.count("<figure>") == 5
    assert "&lt;b&gt;" in page
    assert not re.search(r'(src|href)="', page)


def test_percentiles_are_interpolated_as_numpy_does() -> None:
    values = [random.Random(1).random() for _ in range(37)]
    report = make_report([Timing(0, value) for value in values], 1, {})
    assert report.e2el_ms is not None
    for name, figure in report.e2el_ms.percentiles.items():
        assert figure == pytest.approx(1000 * numpy.percentile(values, int(name[1:])))


def test_lengths_and_arrivals() -> None:
    source = random.Random(3)
    assert {Lengths("128").sampler(source)() for _ in range(9)} == {128}
    draw = Lengths("3:5").sampler(source)
    assert {draw() for _ in range(99)} == {3, 4, 5}
    drawn = [Lengths("normal:100,10").sampler(source)() for _ in range(999)]
    assert statistics.mean(drawn) == pytest.approx(100, abs=2)
    assert statistics.stdev(drawn) == pytest.approx(10, abs=1)
    for burstiness in (0.5, 1.0, 4.0):
        gaps = [*islice(arrival_gaps(20.0, burstiness, source), 20_000)]
        assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
        assert statistics.stdev(gaps) == pytest.approx(1 / 20 / burstiness**0.5, rel=0.05)
    items = random_items(Lengths("7"), Lengths("2"), source, None)
    assert all(len(item.prompt.split()) == 7 and item.output_tokens == 2 for item in islice(items, 50))


@pytest.mark.parametrize("text", ["", "0", "-1", "5:3", "1:2:3", "normal:", "normal:5", "x", "1e9", "9999999"])
def test_bad_lengths(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a length such as"):
        Lengths(text).sampler(random.Random(0))


def test_datasets(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "a", "output_tokens": 5}\n\n{"prompt": "b"}\n')
    items = [*islice(items_of_file(file, Lengths("9"), random.Random(0)), 3)]
    assert items == [Item("a", 5), Item("b", 9), Item("a", 5)]
    deep = "[" * 100_000
    for text in ("", "[]", '{"prompt": 1}', "{", '{"prompt": "\u00e9"}', f'{{"prompt": "a", "x": {deep}'):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=re.escape(str(file))):
            items_of_file(file, Lengths("9"), random.Random(0))


def test_the_command(echo_server: Server, tmp_path: Path) -> None:
    url = echo_server.url.replace("://", "://user:s3@")
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "bench", "--url", url, "--header", "x-secret: s3"]
    files = ["--json", str(tmp_path / "r.json"), "--page", str(tmp_path / "r.html")]
    sizes = [
        "--requests",
        "12",
        "--concurrency",
        "3",
        "--rate",
        "inf",
        "--output-tokens",
        "4:6",
        "--goodput",
        "ttft:60000",
    ]
    done = subprocess.run([*command, *sizes, *files], capture_output=True, text=True, env=ENVIRON, check=True)
    assert re.search(r"Completed requests +12\nFailed requests +0\n", done.stdout)
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["report"]["completed"] == 12
    assert document["report"]["goodput_requests_per_second"] == document["report"]["requests_per_second"]
    assert document["arguments"]["output_tokens"] == "4:6"
    assert "s3" not in (tmp_path / "r.json").read_text() + (tmp_path / "r.html").read_text() + done.stdout
    for wrong, cause in (
        (["--goodput", "x:1"], "--goodput 'x:1' is not a limit such as ttft:500"),
        (["--url", "ftp://u:s3@x"], "--url must be an http or https URL, got ftp://******@x"),
        (["--api", "tgi", "--url", "http://127.0.0.1:1"], "every request of the warm-up failed: ClientConnectorError"),
    ):
        refused = subprocess.run([*command, *wrong], capture_output=True, text=True, env=ENVIRON, check=False)
        assert refused.returncode == 1
        assert f"lmi: error: {cause}" in refused.stderr


@pytest.mark.filterwarnings("ignore")  # vLLM's own libraries
@pytest.mark.needs("vllm")
def test_the_figures_agree_with_vllms() -> None:
    """Both compute them from the same arrivals. The answers end with their last event, as those of vLLM do."""
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    source = random.Random(0)
    timings, theirs = [], []
    for number in range(64):
        started = source.uniform(0, 5)
        arrivals = [started + source.random()]
        gaps = [source.expovariate(20) for _ in range(source.randrange(32))]
        for gap in gaps:
            arrivals.append(arrivals[-1] + gap)
        timings.append(Timing(started, arrivals[-1], arrivals, prompt_tokens=20, output_tokens=len(arrivals)))
        theirs.append(
            RequestFuncOutput(
                success=True,
                start_time=started,
                ttft=arrivals[0] - started,
                itl=gaps,
                latency=arrivals[-1] - started,
                prompt_len=20,
                output_tokens=len(arrivals),
            )
        )
        if number % 8 == 0:
            timings[-1].error, theirs[-1].success, theirs[-1].error = "503", False, "503"
    limits = {"ttft": 500.0, "tpot": 55.0}
    ours = make_report(timings, 7.0, limits)
    metrics, _ = calculate_metrics([], theirs, 7.0, None, [50, 75, 90, 95, 99], limits)
    assert (ours.completed, ours.input_tokens, ours.output_tokens) == (
        metrics.completed,
        metrics.total_input,
        metrics.total_output,
    )
    assert 0 < metrics.request_goodput < metrics.request_throughput
    assert (
        ours.requests_per_second,
        ours.output_tokens_per_second,
        ours.total_tokens_per_second,
        ours.goodput_requests_per_second,
    ) == pytest.approx(
        (metrics.request_throughput, metrics.output_throughput, metrics.total_token_throughput, metrics.request_goodput)
    )
    for figure in ("ttft", "tpot", "itl", "e2el"):
        distribution = getattr(ours, f"{figure}_ms")
        assert distribution.mean == pytest.approx(getattr(metrics, f"mean_{figure}_ms"))
        percentiles = {f"p{percent}": value for percent, value in getattr(metrics, f"percentiles_{figure}_ms")}
        assert distribution.percentiles == pytest.approx(percentiles)
