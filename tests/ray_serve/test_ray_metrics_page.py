"""The metrics of several replicas as one page, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmi_handlers.metrics import catalogue
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.metrics.requests import RequestMetrics, page_of
from lmi_handlers.ray.autoscaling_policy import KV_CACHE_USAGE, RUNNING, WAITING
from lmi_handlers.ray.forwarding import path_of
from lmi_handlers.ray.metrics_page import Kept, asks_metrics, labelled, load_in, merged

NAME = 'a "b" \\ {c} d\ne="1"'  # whatever a model is called


def metrics(directory: Path, model: str = NAME, **load: float) -> RequestMetrics:
    EngineMetrics(directory).set_load(
        running=int(load.get("running", 0)),
        waiting=int(load.get("waiting", 0)),
        kv_cache_usage=load.get("kv_cache_usage", 0.0),
    )
    return RequestMetrics(directory, model)


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def test_labels_are_added_and_nothing_else_changes(tmp_path: Path) -> None:
    page = metrics(tmp_path / "m", running=3).page()
    added = {("replica", "ab12"), ("node", "10.0.0.7")}
    assert samples(labelled(page, "ab12", "10.0.0.7")) == {
        (name, labels | added): value for (name, labels), value in samples(page).items()
    }


def test_pages_are_merged_family_by_family(tmp_path: Path) -> None:
    pages = [labelled(metrics(tmp_path / str(number), running=number).page(), f"r{number}", "n") for number in range(3)]
    page = merged(pages)
    assert samples(page) == {key: value for each in pages for key, value in samples(each).items()}
    families = [line.split(" ")[2] for line in page.splitlines() if line.startswith("# TYPE ")]
    assert families == [metric.name for metric in catalogue.CATALOGUE.metrics]
    assert page.count("# HELP ") == len(families)
    for family in page.split("# HELP ")[1:]:  # all lines of a family are together
        lines = family.splitlines()
        assert all(line.startswith(lines[0].split(" ")[0]) for line in lines[2:])
    assert merged(pages[:1]) == pages[0]
    assert merged([]) == ""


def test_versions_with_different_metrics_are_merged() -> None:
    old = "# HELP a An old one.\n# TYPE a gauge\na 1\n# HELP b Both.\n# TYPE b gauge\nb 1\n"
    new = '# HELP b Both, said better.\n# TYPE b gauge\nb{x="y"} 2\n# HELP c New.\n# TYPE c gauge\nc 3\n'
    assert merged([old, new]) == (
        "# HELP a An old one.\n# TYPE a gauge\na 1\n"
        '# HELP b Both.\n# TYPE b gauge\nb 1\nb{x="y"} 2\n'
        "# HELP c New.\n# TYPE c gauge\nc 3\n"
    )


def test_the_load_of_a_page(tmp_path: Path) -> None:
    one = metrics(tmp_path / "1", running=3, waiting=2, kv_cache_usage=0.25)
    assert load_in(one.page()) == {RUNNING: 3, WAITING: 2, KV_CACHE_USAGE: 0.25}
    other = metrics(tmp_path / "2", "other", running=1, waiting=0, kv_cache_usage=0.75)
    assert load_in(page_of([one, other])) == {RUNNING: 4, WAITING: 2, KV_CACHE_USAGE: 0.75}
    assert load_in("") == {}


@pytest.mark.parametrize(
    ("method", "path", "root_path", "asks"),
    [
        ("GET", "/metrics", "", True),
        ("HEAD", "/metrics", "", True),
        ("GET", "/v2/metrics", "/v2", True),
        ("GET", "/v2/metrics", "", False),
        ("GET", "//metrics", "", True),
        ("GET", "/metrics/", "", False),
        ("POST", "/metrics", "", False),
        ("GET", "/ping", "", False),
    ],
)
def test_which_requests_ask_for_metrics(method: str, path: str, root_path: str, asks: bool) -> None:
    assert asks_metrics(method, path_of({"path": path, "root_path": root_path})) == asks


def test_a_page_is_made_once_for_all_who_ask_even_if_one_leaves() -> None:
    made: list[int] = []

    async def make() -> bytes:
        await asyncio.sleep(0.05)
        made.append(len(made))
        return b"page"

    async def ask() -> None:
        kept = Kept(make)
        leaves = asyncio.create_task(kept.get())
        waiting = [asyncio.create_task(kept.get()) for _ in range(100)]
        await asyncio.sleep(0)
        leaves.cancel()
        assert await asyncio.gather(*waiting) == [b"page"] * 100
        assert await kept.get() == b"page"

    asyncio.run(ask())
    assert made == [0]


def test_a_failure_is_told_to_those_who_asked_and_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmi_handlers.ray.metrics_page._KEPT_SECONDS", 0.0)
    failures = [OSError("gone")]

    async def make() -> bytes:
        if failures:
            raise failures.pop()
        return b"page"

    async def ask() -> None:
        kept = Kept(make)
        with pytest.raises(OSError, match="gone"):
            await kept.get()
        await asyncio.sleep(0.01)
        assert await kept.get() == b"page"

    asyncio.run(ask())
