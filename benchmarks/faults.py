"""Random faults, each run with a new seed: many rounds of tests/system/test_faults.py, and half an hour of its soak."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROUNDS = {"test_faults_with_the_echo_backend": 100, "test_faults_with_the_real_model": 10}
SOAK_MINUTES = 30
_ROOT = Path(__file__).parent.parent


def bench_faults(_: Path) -> None:
    """Run the rounds and print their results. A violated invariant ends the run."""
    print("\n### Faults\n")
    for name, rounds in ROUNDS.items():
        _run(name, "--fault-rounds", str(rounds))


def bench_soak(_: Path) -> None:
    """Run the soak over all APIs and print its result. A violated invariant ends it."""
    print("\n### Soak\n")
    _run("test_soak_over_all_apis", "--soak-minutes", str(SOAK_MINUTES))


def _run(name: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout", "3600"]
    command += ["--fault-seed", str(int(time.time())), *arguments, f"tests/system/test_faults.py::{name}"]
    subprocess.run(command, cwd=_ROOT, check=True)
