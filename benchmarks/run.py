"""`make bench`: measures every figure next to its peer's in the same run. Arguments select the parts to run."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults import bench_faults
from front_end import bench_front_end
from grammar_gap import bench_grammar_gap
from report import machine
from rolling_batch import bench_rolling_batch
from start_up import bench_start_up
from vllm_serve import bench_vllm

PARTS = {
    "front-end": bench_front_end,
    "rolling-batch": bench_rolling_batch,
    "vllm": bench_vllm,
    "grammar": bench_grammar_gap,
    "start-up": bench_start_up,
    "faults": bench_faults,
}


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}; all of them by default")
    names = parser.parse_args().parts or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"{name!r} is no part; the parts are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through the context managers that stop the servers
    started = time.perf_counter()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="lmi-bench-") as directory:
        for name in names:
            PARTS[name](Path(directory))
    print(f"Took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
