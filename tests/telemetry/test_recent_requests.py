"""The last requests, in files of a fixed size, whatever clients send."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_handlers.core.usage import Usage
from lmi_handlers.telemetry.recent import KEPT, RecentReader, RecentRequest, RecentRequests

WORST = "\x01" * 5000
"""Six bytes for each character, in JSON."""


@pytest.mark.parametrize("text", [WORST, "\u2028" * 5000, "\U0001f600" * 5000, "m"])
def test_no_text_is_too_long_for_its_place(tmp_path: Path, text: str) -> None:
    recent = RecentRequests(tmp_path / "recent")
    usage = Usage(started=0.0)
    usage.finish_reasons = ["stop_sequence"] * 1000
    for number in range(KEPT + 5):  # once around
        request_id = f"{number:03}".ljust(256, '"')  # two bytes each
        fields = {"model": text, "request_id": request_id, "path": text, "status": 400, "error": text}
        recent.add(fields | {"first_token_ms": 123456.7, "total_ms": 123456.7}, usage)
    found = RecentReader().read([tmp_path / "recent"])
    assert sorted(int(request.request_id[:3]) for request in found) == list(range(5, KEPT + 5))
    assert all(request.model == text[: len(request.model)] != "" for request in found)
    recent.close()


def add(recent: RecentRequests, *names: str) -> None:
    for name in names:
        fields = {"model": "m", "request_id": name, "path": "/", "status": 200, "first_token_ms": None, "total_ms": 1.0}
        recent.add(fields, Usage(started=0.0))


def names(found: list[RecentRequest]) -> list[str]:
    return [request.request_id for request in found]


def test_a_reader_sees_each_request_once_whoever_keeps_it(tmp_path: Path) -> None:
    """Two workers, more requests between two looks than a worker keeps, and a model that is unloaded."""
    here, there = tmp_path / "here", tmp_path / "there"
    one, other, elsewhere = RecentRequests(here), RecentRequests(here), RecentRequests(there)
    reader = RecentReader()
    assert reader.read([here, there, tmp_path / "missing"]) == []
    add(one, "a")
    add(other, "b")
    add(elsewhere, "c")
    assert names(reader.read([here, there])) == ["c", "b", "a"]
    add(one, "d")
    assert names(reader.read([here])) == ["d", "c", "b", "a"]
    add(one, *map(str, range(2 * KEPT + 3)))
    assert names(reader.read([here])) == [str(number) for number in reversed(range(KEPT + 3, 2 * KEPT + 3))]
    for recent in (one, other, elsewhere):
        recent.close()


def test_a_new_worker_keeps_what_the_last_one_left(tmp_path: Path) -> None:
    gone = RecentRequests(tmp_path / "recent")
    add(gone, "before")
    gone.close()
    recent = RecentRequests(tmp_path / "recent")
    reader = RecentReader()
    assert names(reader.read([tmp_path / "recent"])) == ["before"]
    add(recent, "after")
    assert names(reader.read([tmp_path / "recent"])) == ["after", "before"]
    assert names(RecentReader().read([tmp_path / "recent"])) == ["after", "before"]
    recent.close()


def test_a_request_that_is_being_written_over_is_left_out(tmp_path: Path) -> None:
    recent = RecentRequests(tmp_path / "recent")
    add(recent, "\u00e9", "whole")
    (file,) = (tmp_path / "recent").iterdir()
    file.write_bytes(file.read_bytes().replace(b"\xc3\xa9", b"\xc3x"))  # the second half is of another text
    assert names(RecentReader().read([tmp_path / "recent"])) == ["whole"]
    recent.close()
