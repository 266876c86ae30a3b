"""How long each phase of loading takes, and how much memory it takes for a while."""

from __future__ import annotations

import time
from pathlib import Path

from model_prompts import default_model
from report import PAIRED_HEADER, Paired, Target, print_table, row_without_peer
from servers import Server, loading_lmi_server

from lmi_handlers.core.load_phase import LoadPhase

PEAK = Target(1.25, at_most=True)
SERVED: dict[str, dict[str, object]] = {
    "auto": {"option.rolling_batch": "auto"},
    "scheduler": {"option.rolling_batch": "scheduler", "option.dtype": "fp32"},
}
_BYTES_PER_WEIGHT = 4
_STORED_BYTES_PER_WEIGHT = 2  # the converted default model is bfloat16
_INTERVAL = 0.02


def bench_load(directory: Path) -> None:
    """Print the seconds of each phase, and the memory for weights compared with their size, in float32."""
    stored = sum(file.stat().st_size for file in default_model().glob("*.safetensors"))
    weights = stored / _STORED_BYTES_PER_WEIGHT * _BYTES_PER_WEIGHT
    for name, properties in SERVED.items():
        with loading_lmi_server(directory / name, properties) as server:
            before_weights, peak = _memory(server)
            seconds = server.metrics()
            backend, ready = server.backend, server.seconds_to_ready
        rows = [row_without_peer("start to ready", [ready], "s")]
        rows += [row_without_peer(phase.value, [_seconds(seconds, phase)], "s") for phase in LoadPhase]
        rows.append(row_without_peer("memory before the weights", [before_weights], "MB", scale=1e-6))
        taken = Paired([peak - before_weights], [weights])
        target = PEAK if name == "scheduler" else None
        rows.append(taken.row("peak above that / weights in float32", "MB", scale=1e-6, target=target))
        print_table(f"Load: SmolLM2-135M, rolling_batch={name} ({backend})", PAIRED_HEADER, rows)


def _memory(server: Server) -> tuple[int, int]:
    """Wait until the server is ready. Return the engine's memory before it loaded weights, and its peak."""
    before = 0
    while (phase := server.loading()) is not None:
        if (engine := server.engine) is not None and phase in (
            LoadPhase.IMPORTING,
            LoadPhase.MODEL,
            LoadPhase.TOKENIZER,
        ):
            before = engine.resident_bytes
        time.sleep(_INTERVAL)
    engine = server.engine
    assert engine is not None
    return before, engine.peak_resident_bytes


def _seconds(metrics: dict[str, float], phase: LoadPhase) -> float:
    return next(value for name, value in metrics.items() if name.startswith("lmi_load_seconds") and phase.value in name)
