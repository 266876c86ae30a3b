"""Runs `lmi conform`, and reads what it has found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmi_command import lmi


def conform(url: str, *apis: str, tmp_path: Path, timeout: float = 60, **options: Any) -> tuple[int, dict[str, Any]]:
    """Run `lmi conform`, and return its exit status and what it has found."""
    file = tmp_path / "found.json"
    result = lmi("conform", url, "--api", ",".join(apis), "--json", str(file), "--timeout", str(timeout), **options)
    found: dict[str, Any] = json.loads(file.read_text())
    return result.exit_code, found


def differences(found: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the vectors that were not answered as by the reference, by feature."""
    return {
        f"{name}: {feature['feature']}": wrong
        for name, api in found["apis"].items()
        for feature in api["features"]
        if (wrong := [case for case in feature["cases"] if case["verdict"] != "conforms"])
    }
