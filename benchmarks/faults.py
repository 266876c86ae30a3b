"""Random faults on echo and on the real model: many rounds of tests/system/test_faults.py, with a new seed on every run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROUNDS = {"test_faults_with_the_echo_backend": 100, "test_faults_with_the_real_model": 10}
_ROOT = Path(__file__).parent.parent


def bench_faults(_: Path) -> None:
    """Run the rounds and print their results. A violated invariant ends the run."""
    print("\n### Faults\n")
    seed = int(time.time())
    for name, rounds in ROUNDS.items():
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout", "3600"]
        command += ["--fault-rounds", str(rounds), "--fault-seed", str(seed), f"tests/system/test_faults.py::{name}"]
        subprocess.run(command, cwd=_ROOT, check=True)
