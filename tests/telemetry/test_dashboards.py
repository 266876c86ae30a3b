"""The dashboard and the alarms in sagemaker/: what they show exists, under this name and with these labels."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest
from botocore.validate import ParamValidator
from paths import ROOT

from lmi_handlers.metrics.catalogue import CATALOGUE, LOAD_SECONDS, RESPONSES
from lmi_handlers.metrics.series import Metric
from lmi_handlers.telemetry.emf import EmfLines
from lmi_handlers.telemetry.interval import Interval

FOLDER = ROOT / "sagemaker"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
SELECTOR = re.compile(r"((?:vllm:|tgi_|lmi_)[a-z0-9_]+)(?:\{([^}]*)\})?")


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    alerts = re.findall(r"expr: (.*)", (FOLDER / "alerts.yaml").read_text())
    assert len(panels) > 30
    assert len(alerts) > 5
    return panels + alerts


def series() -> dict[str, Metric]:
    found = {}
    for metric in CATALOGUE.metrics:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found.update({metric.name + suffix: metric for suffix in suffixes})
    return found


@pytest.mark.parametrize("expression", expressions())
def test_expressions_use_series_and_labels_that_exist(expression: str) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors
    known = series()
    labels = {"instance", "model_name"}
    for name, filters in selectors:
        metric = known[name]
        own = {"instance"} | ({"model_name"} if name.startswith("vllm:") else set())
        own |= {metric.label} if metric.label else set()
        assert set(re.findall(r'(\w+)=~?"', filters)) <= own, name
        if metric.kind == "counter":
            assert re.search(rf"rate\({re.escape(name)}", expression), "a counter by itself says nothing"
        labels |= own
        for pattern in re.findall(rf'\b{metric.label}=~?"([^"]*)"', filters) if metric.label else ():
            assert any(re.fullmatch(pattern, value) for value in metric.label_values)
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        assert {word.strip() for word in grouping.split(",")} <= labels | {"le"}


def test_the_dashboard_shows_all_groups_of_metrics() -> None:
    text = json.dumps(DASHBOARD)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {LOAD_SECONDS.name, RESPONSES.name} <= {name for name, _ in SELECTOR.findall(text)}
    for variable in DASHBOARD["templating"]["list"]:
        assert f"${variable['name']}" in text or f"${{{variable['name']}}}" in text


def emf_metrics() -> dict[str, str]:
    """Every metric of CloudWatch's lines, and its unit."""
    ones = [1.0] * CATALOGUE.size
    line = EmfLines("LMI", "m", {"Endpoint": "e", "Variant": "v"}).line(Interval([0.0] * CATALOGUE.size, ones), 1)
    (directive,) = json.loads(line)["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["ModelName", "Endpoint", "Variant"]]
    return {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}


ALARMS = json.loads((FOLDER / "alarms.json").read_text())


@pytest.mark.parametrize("name", ALARMS["Resources"])
def test_alarms_are_valid_and_watch_what_is_written(name: str) -> None:
    alarm = ALARMS["Resources"][name]
    assert alarm["Type"] == "AWS::CloudWatch::Alarm"

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            if [*value] == ["Ref"]:
                assert value["Ref"] in ALARMS["Parameters"]
                return value["Ref"]
            return {key: resolved(item) for key, item in value.items()}
        return [resolved(item) for item in value] if isinstance(value, list) else value

    properties = resolved(alarm["Properties"])
    client = boto3.client("cloudwatch", region_name="us-east-1")
    shape = client.meta.service_model.operation_model("PutMetricAlarm").input_shape
    report = ParamValidator().validate({"AlarmName": name, **properties}, shape)
    assert not report.has_errors(), report.generate_report()
    assert properties["MetricName"] in emf_metrics()
    assert [dimension["Name"] for dimension in properties["Dimensions"]] == ["ModelName", "Endpoint", "Variant"]


def test_the_page_names_every_metric_and_alarm() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yaml").read_text())
    names = [re.sub(r"(P50|P90|P99)$", "", re.sub(r"Responses\d+$", "Responses", name)) for name in emf_metrics()]
    assert [name for name in (*names, *ALARMS["Resources"], *alerts) if f"`{name}" not in page] == []
