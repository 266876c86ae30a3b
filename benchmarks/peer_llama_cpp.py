"""Peer: llama.cpp's HTTP server, from the package xllamacpp. `peer_llama_cpp.py GGUF_FILE PORT SLOTS SLOT_TOKENS`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import xllamacpp


def main(gguf_file: str, port: str, slots: str, slot_tokens: str) -> None:
    """Serve until SIGTERM. The server's own threads, which are not Python's, answer the requests."""
    params: Any = xllamacpp.CommonParams()
    params.model.path = gguf_file
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(slots) * int(slot_tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count()
    params.verbosity = 1
    server: Any = xllamacpp.Server(params)
    signal.sigwait([signal.SIGTERM])
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before any thread starts: they inherit it
    main(*sys.argv[1:])
