"""`lmi bench`: from its options to its reports."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import redacted
from lmi_handlers.core.terminal import show
from lmi_handlers.tools.bench.load import OfferedLoad, send
from lmi_handlers.tools.bench.page import as_page
from lmi_handlers.tools.bench.report import as_json, as_text, make_report
from lmi_handlers.tools.bench.workload import Lengths, arrival_gaps, items_of_file, random_items
from lmi_handlers.tools.client.report_files import report_file
from lmi_handlers.tools.client.server import ServerUrl
from lmi_handlers.tools.client.signals import ended_by_signals, run_async

_GOODPUT = ("ttft", "tpot", "e2el")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `lmi bench`. `rate` is requests per second; without it, the loop is closed."""

    url: str
    api: str
    model: str
    concurrency: int | None
    rate: float | None
    burstiness: float
    requests: int
    duration: float | None
    warm_up: int
    input_tokens: str
    output_tokens: str
    dataset: Path | None
    tokenizer: Path | None
    ignore_eos: bool
    goodput: Mapping[str, float]
    timeout: float
    seed: int
    headers: Mapping[str, str]


def run(options: BenchOptions, json_file: Path | None, page_file: Path | None) -> None:
    """Send the requests, print the figures and write the files. Exits with status 1 if no request was answered.

    Raises `ConfigError`.
    """
    _check(options)
    items = _items(options, random.Random(options.seed))  # noqa: S311  reproducible, not secret
    gaps = random.Random(options.seed + 1)  # noqa: S311
    load = OfferedLoad(
        url=options.url.rstrip("/"),
        api=options.api,
        model=options.model,
        items=items,
        concurrency=options.concurrency or (1 if options.rate is None else 0),
        requests=options.requests,
        duration=options.duration,
        gaps=None if options.rate is None else arrival_gaps(options.rate, options.burstiness, gaps),
        timeout=options.timeout,
        headers=options.headers,
        ignore_eos=options.ignore_eos,
    )
    with (
        ended_by_signals(),
        report_file("--json", json_file) as document,
        report_file("--page", page_file) as page,
    ):
        if options.warm_up:
            clients = min(options.warm_up, load.concurrency or options.warm_up)
            first = {"concurrency": clients, "requests": options.warm_up}
            warm_up, _ = run_async(send(msgspec.structs.replace(load, gaps=None, duration=None, **first)))
            if all(timing.error is not None for timing in warm_up):
                raise ConfigError(f"every request of the warm-up failed: {warm_up[0].error}")
        timings, duration = run_async(send(load))
        report = make_report(timings, duration, options.goodput)
        arguments = _arguments(options)
        show(as_text(report), end="")
        document.write(as_json(report, arguments))
        page.write(as_page(report, timings, arguments).encode())
    if not report.completed:
        sys.exit(1)


def parse_goodput(limits: tuple[str, ...]) -> dict[str, float]:
    """Read limits such as `ttft:500`, in milliseconds. Raises `ConfigError`."""
    parsed = {}
    for limit in limits:
        name, _, text = limit.partition(":")
        try:
            parsed[name] = float(text)
        except ValueError:
            name = ""
        if name not in _GOODPUT:
            raise ConfigError(
                f"--goodput {limit!r} is not a limit such as ttft:500 ({', '.join(_GOODPUT)}; milliseconds)"
            )
    return parsed


def parse_headers(headers: tuple[str, ...]) -> dict[str, str]:
    """Read headers such as `Name: value`. Raises `ConfigError`."""
    parsed = {}
    for header in headers:
        name, separator, value = (part.strip() for part in header.partition(":"))
        if not separator:  # it may be a secret
            raise ConfigError("--header must be NAME:VALUE, got one without a colon")
        if not (_NAME.fullmatch(name) and value.isprintable()):
            raise ConfigError(f"--header {name!r}: not NAME:VALUE, or with characters that no header has")
        parsed[name] = value
    return parsed


def _check(options: BenchOptions) -> None:
    ServerUrl.parse(options.url)
    if math.isnan(options.rate or 0.0) or not math.isfinite(options.burstiness):
        raise ConfigError("--rate and --burstiness must be numbers")


def _items(options: BenchOptions, source: random.Random) -> Any:
    lengths = Lengths(options.output_tokens)
    if options.dataset is not None:
        return items_of_file(options.dataset, lengths, source)
    tokenizer = None
    if options.tokenizer is not None:
        from tokenizers import Tokenizer

        file = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing more specific
            raise ConfigError(f"--tokenizer {file}: {error}") from error
    return random_items(Lengths(options.input_tokens), lengths, source, tokenizer)


def _arguments(options: BenchOptions) -> dict[str, Any]:
    """Return what the report says about the run. Headers and the URL may hold secrets."""
    given = {name: value for name, value in msgspec.to_builtins(options, enc_hook=str).items() if value is not None}
    return given | {
        "url": redacted(options.url),
        "headers": sorted(options.headers),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
