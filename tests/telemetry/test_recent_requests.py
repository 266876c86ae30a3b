"""The last requests, in files of a fixed size, whatever clients send."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_handlers.core.usage import Usage
from lmi_handlers.telemetry.recent import KEPT, RecentRequests, recent_requests

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
    found = recent_requests([tmp_path / "recent"])
    assert sorted(int(request.request_id[:3]) for request in found) == list(range(5, KEPT + 5))
    assert all(request.model == text[: len(request.model)] != "" for request in found)
    recent.close()
