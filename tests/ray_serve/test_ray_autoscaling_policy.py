"""The autoscaling policy as a function: what it needs for a load, and that it neither forgets work nor swings."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmi_handlers.ray.arguments import Arguments
from lmi_handlers.ray.autoscaling_policy import (
    KV_CACHE_USAGE,
    RUNNING,
    WAITING,
    Policy,
    ReplicaLoad,
    replicas_needed,
)

LOADS = st.builds(
    ReplicaLoad,
    running=st.floats(0, 64),
    waiting=st.floats(0, 1000),
    kv_cache_usage=st.floats(0, 1),
)
BATCHES = st.integers(1, 64)
TARGETS = st.floats(0.1, 1)


@pytest.mark.parametrize(
    ("loads", "needed"),
    [
        ([], 1),
        ([ReplicaLoad(0, 0, 0)], 1),
        ([ReplicaLoad(0, 0, 0)] * 4, 1),
        ([ReplicaLoad(6, 0, 0)], 1),
        ([ReplicaLoad(7, 0, 0)], 2),  # 8 run at once, and 0.8 of that is the target
        ([ReplicaLoad(8, 8, 0)], 3),
        ([ReplicaLoad(6, 0, 0)] * 4, 4),
        ([ReplicaLoad(2, 0, 0.9)], 2),  # long prompts: the cache is full before the batch
        ([ReplicaLoad(2, 4, 0.5)], 4),  # something else keeps four of six waiting
        ([ReplicaLoad(2, 0.5, 0.5)], 1),  # but not for most of the time
    ],
)
def test_what_a_load_needs(loads: list[ReplicaLoad], needed: int) -> None:
    assert replicas_needed(loads, 8, 0.8) == needed


@given(st.lists(LOADS, max_size=64), BATCHES, TARGETS)
def test_everything_there_fits_at_once(loads: list[ReplicaLoad], batch: int, target: float) -> None:
    needed = replicas_needed(loads, batch, target)
    assert needed >= 1
    room = needed * target * (1 + 1e-6)
    assert sum(load.running + load.waiting for load in loads) <= room * batch
    assert sum(load.kv_cache_usage for load in loads) <= room


@given(st.lists(LOADS, min_size=1, max_size=8), BATCHES, TARGETS, st.floats(0, 100), st.floats(0, 1))
def test_more_work_never_needs_fewer(
    loads: list[ReplicaLoad], batch: int, target: float, waiting: float, kv_cache_usage: float
) -> None:
    first = loads[0]
    more = ReplicaLoad(first.running, first.waiting + waiting, max(first.kv_cache_usage, kv_cache_usage))
    assert replicas_needed([more, *loads[1:]], batch, target) >= replicas_needed(loads, batch, target)


@given(st.lists(LOADS, max_size=16), BATCHES, TARGETS)
def test_once_the_load_is_spread_no_more_are_needed(loads: list[ReplicaLoad], batch: int, target: float) -> None:
    needed = replicas_needed(loads, batch, target)
    share = ReplicaLoad(
        math.fsum(load.running + load.waiting for load in loads) / needed,
        0,
        math.fsum(load.kv_cache_usage for load in loads) / needed,
    )
    assert replicas_needed([share] * needed, batch, target) <= needed


def context(loads: dict[str, ReplicaLoad], *, current: int, target: int, age: float = 1.0) -> Any:
    def series(field: str) -> dict[str, list[SimpleNamespace]]:
        return {
            replica: [SimpleNamespace(timestamp=1000.0 - age, value=getattr(load, field)) for _ in range(3)]
            for replica, load in loads.items()
        }

    raw = {RUNNING: series("running"), WAITING: series("waiting"), KV_CACHE_USAGE: series("kv_cache_usage")}
    return SimpleNamespace(
        raw_metrics=raw, current_time=1000.0, current_num_replicas=current, target_num_replicas=target
    )


IDLE = ReplicaLoad(0, 0, 0)


@pytest.mark.parametrize(
    ("context", "decision"),
    [
        (context({"a": IDLE, "b": IDLE}, current=2, target=2), 1),
        (context({"a": IDLE}, current=2, target=2), 2),  # nothing is known about the other
        (context({"a": IDLE, "b": IDLE}, current=2, target=2, age=60), 2),  # nor about those that have fallen silent
        (context({"a": ReplicaLoad(8, 16, 0)}, current=2, target=2), 4),
        (context({}, current=1, target=1), 1),
        (context({}, current=0, target=3), 3),
    ],
)
def test_what_is_unknown_is_not_taken_for_idle(context: Any, decision: int) -> None:
    assert Policy(batch=8, target_usage=0.8)(context) == (decision, {})


@pytest.mark.parametrize(
    ("given_", "cause"),
    [
        ({"min_replicas": 2}, "min_replicas requires max_replicas"),
        ({"min_replicas": 0, "max_replicas": 2}, "greater equal 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas=2 min_replicas=3"),
        ({"max_replicas": 2, "replicas": 3}, "replicas=3 1 2"),
        ({"max_replicas": 2, "target_usage": 0}, "greater than 0"),
        ({"max_replicas": 2, "upscale_delay_s": -1}, "greater equal 0"),
        ({"max_replicas": 5000}, "less equal 4096"),
    ],
)
def test_arguments_that_contradict(given_: dict[str, Any], cause: str) -> None:
    with raises(ValidationError, cause):
        Arguments(model_dir="m", **given_)


def test_how_many_replicas_there_may_be() -> None:
    assert Arguments(model_dir="m").most_replicas == 1
    assert Arguments(model_dir="m", replicas=3).most_replicas == 3
    assert Arguments(model_dir="m", replicas=2, min_replicas=1, max_replicas=4).most_replicas == 4
