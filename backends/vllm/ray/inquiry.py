"""The report of `lmi check` about the cluster. A process of its own asks it, because Ray may never answer."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec

from backends.vllm.ray.demand import Supply, demand, demand_in_words, kind_of, supply_in_words
from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.workers.program import command

_ANSWER_SECONDS = 10.0
_PROCESS_SECONDS = 90.0  # importing Ray takes a while on a busy machine


def preview(workers: int, *, gpus: bool) -> tuple[str, bool]:
    """Say what the workers need and what the cluster has, and whether it has answered."""
    try:
        found = _ask()
    except LoadFailed as error:
        gpus_in_words = demand_in_words(demand(workers, Supply([], {}), gpus=True))
        return f"{gpus_in_words if gpus else 'cores for each worker'} will be asked for; {error}", False
    bundles = demand(workers, found, gpus=gpus)
    has = supply_in_words(found, kind_of(bundles))
    return f"On Ray, {demand_in_words(bundles)} will be asked for. The cluster has {has}.", True


def _ask() -> Supply:
    """Return what the cluster has. Raises `LoadFailed`."""
    try:
        ended = subprocess.run(command(__name__), capture_output=True, text=True, timeout=_PROCESS_SECONDS)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"the Ray cluster has not answered within {_PROCESS_SECONDS:g} s") from None
    if ended.returncode:
        raise LoadFailed((ended.stderr.strip() or "the inquiry has failed").splitlines()[-1])
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Supply)


def _main() -> None:
    from backends.vllm.ray.cluster import connect, supply

    try:
        connect(time.monotonic() + _ANSWER_SECONDS, lambda _text: None)
    except LoadFailed as error:
        sys.exit(str(error))
    print(msgspec.json.encode(supply()).decode(), flush=True)


if __name__ == "__main__":
    _main()
