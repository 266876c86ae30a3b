"""`lmi replay`: from its options to its reports."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import redacted
from lmi_handlers.core.terminal import show
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.inputs import input_files
from lmi_handlers.tools.client.json_bytes import json_bytes
from lmi_handlers.tools.client.own_server import own_server
from lmi_handlers.tools.client.report_files import ReportFile, report_file
from lmi_handlers.tools.client.signals import ended_by_signals
from lmi_handlers.tools.replay.page import as_page
from lmi_handlers.tools.replay.recordings import recorded_requests
from lmi_handlers.tools.replay.replay import Outcome, Pace, Replay
from lmi_handlers.tools.replay.report import Collector, Summary, lines, parse_thresholds
from lmi_handlers.tools.replay.targets import EndpointTarget, Target, UrlTarget

_CONCURRENCY = 8
_MOST_AT_A_TIME = 64
"""Default numbers of concurrent requests: in a closed loop, and at the times of the recording."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `lmi replay`. One of `model_dir`, `url` and `endpoint_name` says what is asked."""

    source: str
    model_dir: Path | None = None
    url: str | None = None
    endpoint_name: str | None = None
    region: str | None = None
    accept: str | None = None
    api_key: str | None = None
    concurrency: int | None = None
    speed: float | None = None
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    compare_sampled: bool = False
    json_file: Path | None = None
    page_file: Path | None = None


def run(options: ReplayOptions) -> bool:
    """Replay, print the report and write the files. Returns whether it is a go.

    Raises `LMIError`, `CallRefused`, or `OSError` if a report cannot be written.
    """
    collector = Collector(parse_thresholds(options.allow))
    files = input_files(options.source)
    if not files:
        raise ConfigError(f"--input {options.source} has no files")
    default = _CONCURRENCY if options.speed is None else _MOST_AT_A_TIME
    pace = Pace(options.concurrency or default, options.speed)
    arguments = _arguments(options)
    with (
        ended_by_signals(),
        report_file("--json", options.json_file) as json_file,
        report_file("--page", options.page_file) as page_file,
        _target(options) as target,
    ):
        document = _Document(json_file, arguments)
        replay = Replay(target, ignored=options.ignore, compare_sampled=options.compare_sampled)
        for outcome in replay.outcomes(recorded_requests(files), pace):
            collector.add(outcome)
            document.add(outcome)
        summary = collector.summary()
        document.end(summary)
        page_file.write(as_page(summary, collector.shown, arguments).encode())
        for line in lines(summary, collector.shown):
            show(line)
    return summary.go


@contextlib.contextmanager
def _target(options: ReplayOptions) -> Iterator[Target]:
    """Yield what is asked. Raises `ConfigError` or `CallRefused`."""
    if options.endpoint_name is not None:
        yield EndpointTarget(Aws(options.region), options.endpoint_name, options.accept)
    elif options.url is not None:
        yield UrlTarget(options.url, options.api_key, options.accept)
    else:
        with own_server(options.model_dir) as url:
            yield UrlTarget(url, os.environ.get("API_KEY"), options.accept)


class _Document:
    """The report as JSON, written while the replay runs."""

    def __init__(self, file: ReportFile, arguments: Mapping[str, Any]) -> None:
        self._file = file
        self._file.write(b'{"arguments": %b, "requests": [' % json_bytes(arguments))
        self._separator = b"\n"

    def add(self, outcome: Outcome) -> None:
        self._file.write(self._separator + json_bytes(msgspec.to_builtins(outcome)))
        self._separator = b",\n"

    def end(self, summary: Summary) -> None:
        self._file.write(b'\n], "summary": %b}\n' % json_bytes(msgspec.to_builtins(summary), indent=2))


def _arguments(options: ReplayOptions) -> dict[str, Any]:
    """Return what the report says about the run. The URL may hold a secret."""
    given = msgspec.to_builtins(options, enc_hook=str)
    for name in ("api_key", "json_file", "page_file"):
        del given[name]
    told = {name: value for name, value in given.items() if value not in (None, (), False)}
    if options.url is not None:
        told["url"] = redacted(options.url)
    return told | {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
