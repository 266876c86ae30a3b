"""Stops the processes that try grammars, so that a trial lasts for as long as a test wants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

_MODULE = "backends.grammar_trial"


def trial_processes(engine: psutil.Process) -> list[psutil.Process]:
    """The engine's processes that try grammars. The first one is started with the first grammar."""
    found = []
    for process in engine.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
            if _MODULE in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def frozen_trials(engine: psutil.Process | None = None) -> Iterator[None]:
    """Within the block, no trial of the engine (this process by default) goes on. A grammar must have been tried before."""
    processes = trial_processes(engine or psutil.Process())
    assert processes, "no process tries grammars yet"
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
