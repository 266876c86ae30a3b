"""`make bench`: measures every figure next to its peer's in the same run. Arguments select the parts to run."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from conversation import bench_conversation
from engines import bench_engines, bench_larger_models, bench_prompts
from faults import bench_faults, bench_soak
from front_end import bench_front_end
from grammar_gap import bench_grammar_gap
from load import bench_load
from machine import describe_machine
from neighbour_cost import bench_neighbours
from open_streams import bench_open_streams
from ray_prefixes import bench_ray_prefixes
from ray_replicas import bench_ray
from s3_download import bench_s3
from start_up import bench_start_up
from vllm_serve import bench_vllm

PARTS = {
    "front-end": bench_front_end,
    "open-streams": bench_open_streams,
    "engines": bench_engines,
    "prompts": bench_prompts,
    "larger-models": bench_larger_models,
    "conversation": bench_conversation,
    "neighbours": bench_neighbours,
    "load": bench_load,
    "vllm": bench_vllm,
    "grammar": bench_grammar_gap,
    "start-up": bench_start_up,
    "s3": bench_s3,
    "faults": bench_faults,
    "soak": bench_soak,
    "ray": bench_ray,
    "ray-prefixes": bench_ray_prefixes,
}


def main() -> None:
    """Run the selected parts. Exits with 1 if one of them failed, after the others have run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}; all of them by default")
    names = parser.parse_args().parts or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"{name!r} is no part; the parts are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through the context managers that stop the servers
    print(describe_machine(), flush=True)
    failed = [name for name in names if not _runs(name)]
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def _runs(name: str) -> bool:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lmi-bench-") as directory:
        try:
            PARTS[name](Path(directory))
        except Exception:  # noqa: BLE001  the other parts can still be measured
            traceback.print_exc()
            return False
        finally:
            print(f"{name}: took {time.perf_counter() - started:.0f} s.", flush=True)
    return True


if __name__ == "__main__":
    main()
