"""Admission policies: how many waiting sequences start, and when to check again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.engine.admission import DynamicBatch, RollingBatch

counts = st.integers(0, 1000)
sizes = st.integers(1, 1000)
seconds = st.floats(0, 1e4)


@given(size=sizes, waiting=counts, oldest_wait=seconds, data=st.data())
def test_rolling_batch_fills_every_free_place(size: int, waiting: int, oldest_wait: float, data: st.DataObject) -> None:
    running = data.draw(st.integers(0, size))
    room = RollingBatch(size).room(waiting=waiting, oldest_wait=oldest_wait, running=running)
    assert 0 <= room <= waiting
    assert running + room <= size
    assert room == waiting or running + room == size


@given(size=sizes, oldest_wait=seconds)
def test_rolling_batch_has_no_timer(size: int, oldest_wait: float) -> None:
    assert RollingBatch(size).wait(oldest_wait) is None


@given(size=sizes, delay=seconds, waiting=counts, oldest_wait=seconds, running=st.integers(1, 1000))
def test_nothing_joins_a_running_dynamic_batch(
    size: int, delay: float, waiting: int, oldest_wait: float, running: int
) -> None:
    assert DynamicBatch(size, delay).room(waiting=waiting, oldest_wait=oldest_wait, running=running) == 0


@given(size=sizes, delay=seconds, waiting=counts, oldest_wait=seconds)
def test_dynamic_batch_starts_when_full_or_due(size: int, delay: float, waiting: int, oldest_wait: float) -> None:
    room = DynamicBatch(size, delay).room(waiting=waiting, oldest_wait=oldest_wait, running=0)
    if waiting >= size or oldest_wait >= delay:
        assert room == min(waiting, size)
    else:
        assert room == 0


@given(size=sizes, delay=seconds, waiting=st.integers(1, 1000), oldest_wait=seconds)
def test_dynamic_batch_is_due_after_its_wait(size: int, delay: float, waiting: int, oldest_wait: float) -> None:
    admission = DynamicBatch(size, delay)
    wait = admission.wait(oldest_wait)
    assert wait is not None
    assert 0 <= wait <= delay
    later = oldest_wait + wait + 1e-9 * delay  # rounding error
    assert admission.room(waiting=waiting, oldest_wait=later, running=0) == min(waiting, size)
