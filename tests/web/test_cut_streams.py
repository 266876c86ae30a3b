"""Streams of an engine that dies, in a web worker without a server around it: see `cut_streams`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import SUPPORT
from serving import ENVIRON


@pytest.mark.parametrize("rounds", [20, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_no_answer_of_an_engine_that_dies_looks_complete_or_hangs(
    rounds: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--fault-seed")
    command = [sys.executable, "-m", "gevent.monkey", str(SUPPORT / "cut_streams.py"), str(tmp_path), str(seed)]
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [*command, str(rounds)],
        env=ENVIRON | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert min(found[kind] for kind in ("complete", "cut", "refused", "left")) > 0, found
