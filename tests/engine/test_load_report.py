"""Phases of a load are timed, and no backend can add to the label values of `lmi_load_seconds`."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.engine.heartbeat import Heartbeat
from lmi_handlers.engine.load_report import LoadReport
from lmi_handlers.engine.messages import Loading
from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.cells import totals
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.metrics.series import exposition


def load_seconds(directory: Path) -> dict[str, float]:
    page = exposition(CATALOGUE.metrics, [(totals(directory, CATALOGUE), {})])
    return {phase: float(value) for phase, value in re.findall(r'lmi_load_seconds\{phase="(.*)"\} (.*)', page)}


def test_phases_are_announced_and_timed(tmp_path: Path) -> None:
    announced: list[Loading] = []
    report = LoadReport(time.monotonic() - 100, announced.append, EngineMetrics(tmp_path / "metrics"), Heartbeat())
    for text in (
        LoadPhase.WEIGHTS,
        "layer 1 of 2",
        "compiling the model",
        '\n"}',
        LoadPhase.WEIGHTS,
        LoadPhase.WEIGHTS,
    ):
        report(text)
    assert [state.phase for state in announced] == [
        "starting",
        "loading weights",
        "loading weights: layer 1 of 2",
        "compiling the model",
        'compiling the model: \n"}',
        "loading weights",
        "loading weights",
    ]
    report.bundle = tmp_path
    report("with a tokenizer")
    assert [state.bundle for state in announced] == [None] * 7 + [str(tmp_path)]
    begun = [state.since for state in announced]
    assert begun[1] == begun[2] < begun[3] == begun[4] < begun[5] == begun[6], "details do not begin a phase"
    total = report.finish()
    seconds = load_seconds(tmp_path / "metrics")
    assert list(seconds) == [phase.value for phase in LoadPhase]
    assert {phase for phase, value in seconds.items() if value} == {
        "starting",
        "loading weights",
        "compiling the model",
    }
    assert seconds["starting"] >= 100
    assert sum(seconds.values()) == pytest.approx(total)


def test_time_spent_waiting_for_resources_is_not_loading_time(tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    report = LoadReport(time.monotonic(), lambda _: None, EngineMetrics(tmp_path / "metrics"), heartbeat)
    report(LoadPhase.WEIGHTS)
    assert heartbeat.last_arrival == 0.0
    report(LoadPhase.RESOURCES)
    begun = heartbeat.last_arrival
    assert begun > 0.0
    report("2 workers with 1 GPU each are asked for")
    assert heartbeat.last_arrival == begun
    report(LoadPhase.WEIGHTS)
    ended = heartbeat.last_arrival
    assert ended > begun
    report(LoadPhase.WARM_UP)
    assert heartbeat.last_arrival == ended
