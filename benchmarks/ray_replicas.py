"""Replicas on Ray Serve over two nodes: how they scale, what they add to a request, and what they cost.

    python benchmarks/ray_replicas.py --json figures.json

`echo` stands for an engine: a stream has a speed, and a replica a limit of streams.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import os
import random
import re
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from machine import busy_and_idle_seconds, describe_machine
from ray_ingress import measure_ingress
from ray_nodes import OTHERS, Cluster, ray_cluster, replicas
from report import Target, number, print_table
from servers import Server, lmi_server

from lmi_handlers.tools.bench.load import OfferedLoad, Timing, send
from lmi_handlers.tools.bench.report import distribution
from lmi_handlers.tools.bench.workload import Lengths, random_items

PACE = 20
"""Tokens per second of a stream."""

TOKENS = 40
FULL_SPEED = TOKENS / (TOKENS - 1) * PACE
"""Tokens per second of a place in the batch: the first token of a stream needs no time."""

BATCH = 8
ENGINE = {"option.rolling_batch": "echo", "option.max_rolling_batch_size": BATCH, "option.echo_tokens_per_second": PACE}
WIDE = ENGINE | {"option.max_rolling_batch_size": 256}
SLOW = WIDE | {"option.max_rolling_batch_size": 1024, "option.echo_tokens_per_second": 0.1}

REPLICAS = (1, 2, 4)
SCALING_SECONDS, LIMIT_SECONDS, IDLE_SECONDS = 10.0, 6.0, 5.0
STREAMS = (64, 128, 256, 512)
"""Streams at a time, to find out when the processor is the limit."""

PAIRS = 200
BESIDE = 32
OPEN = (200, 1000)
MANY = 8
LARGE = 64
CHECKS = 500
FORWARDING = ("HAProxy", "replica actor")
SERVING = ("web worker", "engine")
CONTROL = ("controller", "HAProxy's manager", OTHERS)
CLIENT = "client"

SCALES = 0.9
MEDIAN_MS = Target(5.0, of_ratio=False, at_most=True)
P99_MS = Target(20.0, of_ratio=False, at_most=True)


def bench_ray(directory: Path) -> None:
    """Print all figures."""
    measure(directory, {})


def measure(directory: Path, found: dict[str, Any]) -> None:
    """Print all figures, and add them to `found` as soon as they are there."""
    found |= {"machine": describe_machine(), "idle": {}, "scaling": {}}
    with ray_cluster(directory) as cluster:
        for count in REPLICAS:
            with replicas(cluster, directory / f"engines-{count}", ENGINE, count) as server:
                found["idle"][count] = _idle(cluster)
                found["scaling"][count] = _scaling(cluster, server, count)
        _print_scaling(found["scaling"])
        with replicas(cluster, directory / "wide", WIDE, max(REPLICAS)) as server:
            found["limit"] = [_limit(cluster, server, streams) for streams in STREAMS]
            _print_limit(found["limit"])
            with lmi_server(directory / "alone", WIDE) as alone:
                found["first_token"] = {
                    "alone": _first_tokens(server, alone, 0),
                    f"beside {BESIDE} streams": _first_tokens(server, alone, BESIDE),
                }
        _print_first_tokens(found["first_token"])
        with replicas(cluster, directory / "slow", SLOW, 1) as server:
            found["memory"] = _memory(cluster, server)
        _print_memory(found["memory"])
        with replicas(cluster, directory / "many", SLOW, MANY) as server:
            found["idle"][MANY] = _idle(cluster)
            _print_idle(found["idle"])
            found["pages"] = _pages(server)
            written = cluster.haproxy_configuration()
            found["check_us"] = _check(cluster, written[1], found["idle"][MANY]["replica actor"])
            found["ingress"] = measure_ingress(written, directory)
        _print_computed(found)


def _load(url: str, streams: int, seconds: float, tokens: int = TOKENS, requests: int = 1 << 20) -> OfferedLoad:
    """Return a closed loop on the LMI API, as `lmi bench --api lmi` has it."""
    items = random_items(Lengths("32"), Lengths(str(tokens)), random.Random(0), None)
    return OfferedLoad(
        url=url,
        api="lmi",
        model="",
        items=items,
        concurrency=streams,
        requests=requests,
        duration=seconds,
        ignore_eos=True,
    )


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def _run(load: OfferedLoad) -> tuple[list[Timing], float]:
    timings, duration = asyncio.run(send(load))
    if errors := Counter(timing.error for timing in timings if timing.error is not None):
        raise RuntimeError(f"requests failed: {errors.most_common(3)}")
    return timings, duration


def _measured(cluster: Cluster, server: Server, streams: int, seconds: float) -> dict[str, Any]:
    """Send a load. Tokens per second are those between the first fifth and the end of `seconds`: no start, no end."""
    before, own, (busy, idle) = cluster.cpu_seconds(), _own_cpu_seconds(), busy_and_idle_seconds()
    timings, duration = _run(_load(_url(server), streams, seconds))
    after, own = cluster.cpu_seconds(), _own_cpu_seconds() - own
    busy, idle = (now - then for now, then in zip(busy_and_idle_seconds(), (busy, idle), strict=True))
    arrivals = [arrival for timing in timings for arrival in timing.arrivals]
    begin = seconds / 5
    tokens = sum(begin <= arrival < seconds for arrival in arrivals)
    cpu = {role: (after[role] - before[role]) / len(arrivals) for role in after} | {CLIENT: own / len(arrivals)}
    gaps = distribution(
        [1e3 * (later - first) for timing in timings for first, later in itertools.pairwise(timing.arrivals)]
    )
    return {
        "streams": streams,
        "tokens_per_second": tokens / (seconds - begin),
        "cpu_us_per_token": {role: 1e6 * value for role, value in cpu.items()},
        "cores_used": sum(cpu.values()) * len(arrivals) / duration,
        "machine_busy": busy / (busy + idle),
        "gap_p99_ms": gaps.percentiles["p99"] if gaps else None,
    }


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _scaling(cluster: Cluster, server: Server, count: int) -> dict[str, Any]:
    """Measure with twice as many clients as places: the engines are always full."""
    measured = _measured(cluster, server, 2 * BATCH * count, SCALING_SECONDS)
    return measured | {"nodes": cluster.nodes_with("replica actor"), "engines_alone": BATCH * FULL_SPEED * count}


def _limit(cluster: Cluster, server: Server, streams: int) -> dict[str, Any]:
    return _measured(cluster, server, streams, LIMIT_SECONDS) | {"asked": streams * FULL_SPEED}


def _print_scaling(measured: dict[int, dict[str, Any]]) -> None:
    one = measured[1]["tokens_per_second"]
    rows = []
    for count, each in measured.items():
        ratio = each["tokens_per_second"] / one
        target = Target(SCALES * count).verdict(ratio, ratio)
        row = [f"{count}", f"{each['nodes']}", number(each["tokens_per_second"]), number(each["engines_alone"])]
        rows.append([*row, f"{ratio:.2f}", number(each["cores_used"]), target])
    header = ["replicas", "nodes", "tokens/s", "the engines' own", "x one replica", "cores used", "target"]
    print_table(f"Ray: replicas of {BATCH} streams at {PACE} tokens/s", header, rows)


def _print_limit(measured: list[dict[str, Any]]) -> None:
    roles = [*FORWARDING, *SERVING, *CONTROL, CLIENT]
    rows = []
    for each in measured:
        cpu = each["cpu_us_per_token"]
        row = [f"{each['streams']}", number(each["asked"]), number(each["tokens_per_second"])]
        row += [
            f"{each['cores_used']:.2f}",
            f"{each['machine_busy']:.0%}",
            number(each["gap_p99_ms"]),
            *(number(cpu[role]) for role in roles),
        ]
        rows.append(row)
    header = ["streams", "tokens/s asked", "tokens/s", "cores used", "machine busy", "p99 of gaps, ms", *roles]
    most = max(measured, key=lambda each: float(each["tokens_per_second"]))["cpu_us_per_token"]
    total = sum(most.values())
    added = sum(most[role] for role in FORWARDING) / sum(most[role] for role in SERVING)
    full = 1e6 * (os.cpu_count() or 1) / total
    print_table(
        f"Ray: {max(REPLICAS)} replicas; processor time in us per token",
        header,
        rows,
        f"At {total:.0f} us per token, {os.cpu_count()} cores are full at {full:,.0f} tokens/s, the client and the engines "
        f"included. HAProxy and the replica actors take {added:.2f} times as long as the web workers and the engines.",
    )


async def _pairs(on_ray: str, alone: str) -> tuple[list[float], list[float]]:
    """Return the milliseconds to the first token of single requests, which take turns."""
    found: dict[str, list[float]] = {on_ray: [], alone: []}
    for number_ in range(PAIRS):
        for url in (on_ray, alone) if number_ % 2 else (alone, on_ray):
            (timing,), _ = await send(_load(url, 1, 60.0, tokens=1, requests=1))
            if timing.error is not None:
                raise RuntimeError(timing.error)
            found[url].append(1e3 * timing.arrivals[0] - 1e3 * timing.started)
    return found[on_ray], found[alone]


async def _pairs_beside(on_ray: str, alone: str, streams: int) -> tuple[list[float], list[float]]:
    """Measure while each server has other streams."""
    tokens = PACE * 600
    others = [asyncio.create_task(send(_load(url, streams, 600.0, tokens))) for url in (on_ray, alone) if streams]
    try:
        await asyncio.sleep(1.0 if streams else 0.0)
        return await _pairs(on_ray, alone)
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _first_tokens(server: Server, alone: Server, streams: int) -> dict[str, float]:
    own, others = asyncio.run(_pairs_beside(_url(server), _url(alone), streams))
    added = [first - second for first, second in zip(own, others, strict=True)]
    figures: dict[str, float] = {}
    for name, values in (("ray", own), ("server alone", others), ("added, by pair", added)):
        found = distribution(values)
        assert found is not None
        figures |= {f"{name}, median": found.percentiles["p50"], f"{name}, p99": found.percentiles["p99"]}
    return figures


def _print_first_tokens(measured: dict[str, dict[str, float]]) -> None:
    rows = []
    for name, each in measured.items():
        for percentile, target in (("median", MEDIAN_MS), ("p99", P99_MS)):
            own, other = each[f"ray, {percentile}"], each[f"server alone, {percentile}"]
            pair = each[f"added, by pair, {percentile}"]
            row = [f"{name}, {percentile}", f"{own:.2f}", f"{other:.2f}", f"{own - other:.2f}", f"{pair:.2f}"]
            rows.append([*row, target.verdict(own - other)])
    header = ["first token, ms", "on Ray", "server alone", "difference", "of the pairs' differences", "target"]
    print_table(f"Ray: first tokens of {PAIRS} pairs of requests", header, rows)


def _memory(cluster: Cluster, server: Server) -> list[dict[str, Any]]:
    """Return the memory of the processes by the number of open streams."""
    measured = [{"streams": 0} | _bytes(cluster)]
    for streams in (*OPEN, 0):
        asyncio.run(_with_open(cluster, server, streams, measured))
    return measured


async def _with_open(cluster: Cluster, server: Server, streams: int, measured: list[dict[str, Any]]) -> None:
    load = asyncio.create_task(send(_load(_url(server), streams, 600.0, tokens=1000))) if streams else None
    await asyncio.sleep(6.0)
    measured.append({"streams": streams} | await asyncio.to_thread(_bytes, cluster))
    if load is not None:
        if load.done():
            raise RuntimeError("the streams have ended")
        load.cancel()
        with suppress(asyncio.CancelledError):
            await load


def _bytes(cluster: Cluster) -> dict[str, int]:
    processes = cluster.processes()
    return {role: sum(each.shared_bytes for each in processes[role]) for role in (*FORWARDING, *SERVING)}


def _print_memory(measured: list[dict[str, Any]]) -> None:
    roles = (*FORWARDING, *SERVING)
    rows = [[f"{each['streams']}", *(f"{each[role] / 1e6:.1f}" for role in roles)] for each in measured]
    first, most = measured[0], max(measured, key=lambda each: each["streams"])
    growth = [f"{(most[role] - first[role]) / most['streams'] / 1e3:.1f}" for role in roles]
    rows.append(["kB a stream", *growth])
    print_table("Ray: memory (PSS) of one replica, MB, by open streams", ["open streams", *roles], rows)


def _idle(cluster: Cluster) -> dict[str, float]:
    """Return the CPU time per second, in ms, without any request, and the memory."""
    for _ in range(5):
        ids, before = _ids(cluster), cluster.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        after = cluster.cpu_seconds()
        if _ids(cluster) == ids:  # else something has just ended, such as the replicas before, or was started
            break
    memory = sum(each.shared_bytes for each in itertools.chain(*cluster.processes().values()))
    return {role: 1e3 * (after[role] - before[role]) / IDLE_SECONDS for role in after} | {"memory": memory}


def _ids(cluster: Cluster) -> set[int]:
    return {process.pid for process in itertools.chain(*cluster.processes().values())}


def _print_idle(measured: dict[int, dict[str, float]]) -> None:
    roles = [*FORWARDING, *SERVING, *CONTROL]
    rows = [
        [f"{count}", *(number(each[role]) for role in roles), f"{each['memory'] / 1e6:,.0f}"]
        for count, each in measured.items()
    ]
    header = ["replicas", *roles, "memory of all, MB"]
    print_table("Ray: processor time without requests, ms per second", header, rows)


def _pages(server: Server) -> dict[str, float]:
    """Return the size and the time of the page with the metrics of all replicas, which is kept for a second."""
    times = []
    for _ in range(5):
        time.sleep(1.1)
        began = time.perf_counter()
        size = len(server.page("/metrics"))
        times.append(time.perf_counter() - began)
    found = {"bytes": size, "milliseconds": 1e3 * statistics.median(times)}
    print_table("Ray: /metrics of all replicas", ["bytes", "ms"], [[number(value) for value in found.values()]])
    return found


def _check(cluster: Cluster, configuration: str, idle_ms: float) -> float:
    """Return the CPU time in us that a check of HAProxy's takes in the replica actor that answers it."""
    address = re.findall(r"^ *server \S+ (\S+) check", configuration, flags=re.MULTILINE)[0]
    connection = http.client.HTTPConnection(address, timeout=60)
    before, began = cluster.cpu_seconds(), time.perf_counter()
    for _ in range(CHECKS):
        connection.request("GET", "/-/healthz")
        connection.getresponse().read()
    seconds = cluster.cpu_seconds()["replica actor"] - before["replica actor"]
    seconds -= idle_ms / 1e3 * (time.perf_counter() - began)
    connection.close()
    return 1e6 * seconds / CHECKS


def _print_computed(found: dict[str, Any]) -> None:
    """Print what the figures say about more replicas than were started. HAProxy was measured with as many servers."""
    idle, page, ingress = found["idle"], found["pages"], found["ingress"][-1]
    few, many = min(idle), max(idle)

    def at(role: str) -> float:
        slope = (idle[many][role] - idle[few][role]) / (many - few)
        return float(idle[many][role] + slope * (LARGE - many))

    rows = [
        [
            "controller, without requests",
            f"{number(idle[many]['controller'])} ms/s",
            f"{number(at('controller'))} ms/s",
        ],
        ["all other processes of Ray's", f"{number(idle[many][OTHERS])} ms/s", f"{number(at(OTHERS))} ms/s"],
        [
            "health checks, in all replica actors",
            *(f"{number(each)} ms/s" for each in (idle[many]["replica actor"], at("replica actor"))),
        ],
        ["memory of all processes", f"{idle[many]['memory'] / 1e9:.1f} GB", f"{at('memory') / 1e9:.1f} GB"],
        ["page of metrics of all", *(f"{count / many * page['bytes'] / 1e6:.1f} MB" for count in (many, LARGE))],
        ["time of this page", f"{number(page['milliseconds'])} ms", ""],
        ["a check of HAProxy's, in the replica actor", f"{number(found['check_us'])} us", "the same"],
        [
            "these checks in a replica, with an HAProxy on each of as many nodes",
            *(f"{number(count * found['check_us'] / 1e3)} ms per round" for count in (many, LARGE)),
        ],
        ["tokens/s of a core of HAProxy", number(1e6 / ingress["cpu_us_per_token"]), "the same"],
    ]
    print_table(f"{LARGE} replicas", ["", f"measured with {many}", f"computed for {LARGE}"], rows)


def main() -> None:
    """Measure, print tables and write the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through the context managers that stop the servers
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    print(describe_machine(), flush=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lmi-bench-") as directory:
        try:
            measure(Path(directory), found)
        finally:
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
