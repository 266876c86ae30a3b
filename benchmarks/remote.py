"""The cost of a remote engine: CPU time of the engine process per token, with a remote that sends one per 50 ms.

    python benchmarks/remote.py [streams] [tokens per stream]

The remote is a stand-in in a process of its own, so its time is not counted.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from serving_properties import serving_properties
from token_server import VOCAB_SIZE, TokenServer

from backends.base import ModelFiles
from backends.remote.backend import RemoteBackend
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams


def serve(ready: Connection) -> None:
    """Run the stand-in until this process is ended."""
    ready.send(TokenServer(pace=0.05).url)
    while True:
        time.sleep(3600)


def main(streams: int = 256, tokens: int = 200) -> None:
    """Measure, and print one line."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    remote = context.Process(target=serve, args=(theirs,), daemon=True)
    remote.start()
    properties = serving_properties(engine_url=ours.recv())
    files = ModelFiles(path=None, eos_token_ids=(2,), vocab_size=VOCAB_SIZE)
    backend = RemoteBackend.load(files, properties, print)
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    cpu, wall, running = time.process_time(), time.perf_counter(), streams
    for number in range(streams):
        request = TokenRequest(request_id=f"{number}", prompt=EncodedPrompt([5, number]), sampling_params=params)
        backend.add_request(request)
    while running:
        running -= sum(output.finish_reason is not None for output in backend.step())
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    total = streams * tokens
    print(f"{streams} streams: {cpu / total * 1e6:.1f} us of CPU time per token, {total / wall:.0f} tokens/s")
    backend.close()
    remote.terminate()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
