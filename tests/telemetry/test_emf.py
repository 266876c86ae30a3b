"""CloudWatch's lines: they follow AWS's specification, and say what has happened in their period."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_store import ECHO, StoreServer
from paths import ROOT
from serving import StartServer
from waiting import wait_until

from lmi_handlers.metrics.catalogue import CATALOGUE, DURATION, E2E_LATENCY, QUEUE_DURATION, TIME_TO_FIRST_TOKEN
from lmi_handlers.metrics.cells import Cells, totals
from lmi_handlers.telemetry.emf import EmfLines
from lmi_handlers.telemetry.interval import Interval

SCHEMA = json.loads((ROOT / "tests" / "data" / "aws" / "emf.schema.json").read_text())


def checked(line: str | bytes) -> dict[str, Any]:
    """Parse a line, and check what AWS's schema and the text of its specification say."""
    document: dict[str, Any] = json.loads(line)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    names = [metric["Name"] for metric in directive["Metrics"]]
    assert len(set(names)) == len(names)
    assert all(isinstance(document[name], int | float) for name in names)
    for name in directive["Dimensions"][0]:
        assert isinstance(document[name], str)
        assert 1 <= len(document[name]) <= 1024
    assert len(line) < 4096, "one write to a pipe"
    return document


def emf_lines(log: str) -> list[dict[str, Any]]:
    return [checked(line) for line in log.splitlines() if '"_aws"' in line]


def test_lines_of_a_server(start_server: StartServer) -> None:
    environ = {
        "LMI_EMF": "true",
        "LMI_EMF_PERIOD": "0.5",
        "LMI_EMF_NAMESPACE": "Team/LLM",
        "SAGEMAKER_ENDPOINT_NAME": "chat",
        "SAGEMAKER_VARIANT_NAME": "AllTraffic",
    }
    server = start_server("option.rolling_batch=echo\n", "--workers", "2", environ=environ)
    for _ in range(3):
        assert server.invoke({"inputs": "hello"}).status_code == 200
    assert server.invoke({"inputs": "hello", "parameters": {"top_p": 7}}).status_code == 424

    def total(name: str) -> float:
        return sum(float(line.get(name, 0)) for line in emf_lines(server.log))

    sums = {"Requests": 4, "RequestsSucceeded": 3, "RequestsFailed": 1, "PromptTokens": 15, "GeneratedTokens": 18}
    sums |= {"Responses2XX": 3, "Responses4XX": 1, "Responses424": 1}
    wait_until(lambda: {name: total(name) for name in sums} == sums)  # a period may end between two of a request
    lines = emf_lines(server.log)
    dimensions = ["ModelName", "Endpoint", "Variant"]
    assert {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in lines} == {"Team/LLM"}
    assert all(line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [dimensions] for line in lines)
    assert all([line[name] for name in dimensions] == [server.name, "chat", "AllTraffic"] for line in lines)
    timed = [line for line in lines if "FirstTokenLatencyP50" in line]
    assert timed
    assert all(0 < line["FirstTokenLatencyP50"] <= line["FirstTokenLatencyP99"] <= 60_000 for line in timed)
    assert server.invoke({"inputs": "hello"}).status_code == 200
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(120)
    assert total("Requests") == 5, "the last period is published at the end"


def test_each_of_several_models_has_lines(tmp_path: Path) -> None:
    """The period is long: these lines are those of the end of a model, and of the server."""
    environ = {"LMI_EMF": "true", "LMI_EMF_PERIOD": "600"}
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO}, environ=environ)
    try:
        server.wait_ready()
        for name in "aab":
            assert server.generate(name).status_code == 200
        assert emf_lines(server.log) == []
        assert server.ask("DELETE", "/models/b").status_code == 200
        wait_until(lambda: [(line["ModelName"], line["Requests"]) for line in emf_lines(server.log)] == [("b", 1)])
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
    finally:
        server.stop()
    assert [(line["ModelName"], line["Requests"]) for line in emf_lines(server.log)] == [("b", 1), ("a", 2)]
    assert "process ended" not in server.log


def test_nothing_is_written_unless_asked_for(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\n", environ={"LMI_EMF_PERIOD": "0.1"})
    assert server.invoke({"inputs": "hello"}).status_code == 200
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(120)
    assert emf_lines(server.log) == []


@given(name=st.text(max_size=2000), endpoint=st.text(max_size=2000))
def test_any_name_is_a_valid_dimension(name: str, endpoint: str) -> None:
    zeros = [0.0] * CATALOGUE.size
    line = EmfLines("LMI", name, {"Endpoint": endpoint}).line(Interval(zeros, zeros), 1)
    json.loads(line)
    (directive,) = json.loads(line)["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["ModelName", "Endpoint"]]
    for dimension in ("ModelName", "Endpoint"):
        value = json.loads(line)[dimension]
        assert 1 <= len(value) <= 1024
        assert value.isascii()
        assert value.isprintable()


def test_quantiles_are_those_of_the_period(tmp_path: Path) -> None:
    cells = Cells(tmp_path / "metrics", CATALOGUE)
    readings = [totals(tmp_path / "metrics", CATALOGUE)]
    for seconds in ([9.0] * 50, [0.3] * 10 + [0.45] * 80 + [0.7] * 10):
        for value in seconds:
            cells.observe(value, E2E_LATENCY)
        readings.append(totals(tmp_path / "metrics", CATALOGUE))
    second = Interval(readings[1], readings[2])
    assert second.quantile(E2E_LATENCY, 0.1) == pytest.approx(0.3)
    assert second.quantile(E2E_LATENCY, 0.5) == pytest.approx(0.4)
    assert second.quantile(E2E_LATENCY, 0.95) == pytest.approx(0.65)
    assert second.quantile(TIME_TO_FIRST_TOKEN, 0.5) is None
    cells.observe(0.02, DURATION)
    cells.observe(0.0001, QUEUE_DURATION)
    fast = checked(EmfLines("LMI", "m", {}).line(Interval(readings[2], totals(tmp_path / "metrics", CATALOGUE)), 1))
    assert 15 < fast["RequestLatencyP50"] < 25, "also far below vLLM's first bucket, 0.3 s"
    assert fast["QueueTimeP50"] < 0.2, "there was no queue"
    cells.observe(1e6, E2E_LATENCY, times=1000)
    beyond = Interval(readings[2], totals(tmp_path / "metrics", CATALOGUE))
    assert beyond.quantile(E2E_LATENCY, 0.5) == E2E_LATENCY.buckets[-1]
    assert "FirstTokenLatencyP50" not in fast
