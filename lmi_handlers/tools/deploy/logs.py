"""The log of an endpoint's containers in CloudWatch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import CallRefused

_POLL_SECONDS = 2.0
_OVERLAP_SECONDS = 30
"""CloudWatch may deliver lines late, so each poll asks for the last ones again."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Line(msgspec.Struct, frozen=True):
    """A line of the log. `stream` names the variant and the instance, `milliseconds` count from 1970."""

    milliseconds: int
    stream: str
    message: str


def log_group(name: str | None, component: str | None) -> str:
    """Return the log group that SageMaker writes to."""
    if component is not None:
        return f"/aws/sagemaker/InferenceComponents/{component}"
    return f"/aws/sagemaker/Endpoints/{name}"


def read_log(aws: Aws, group: str, *, seconds: int, pattern: str | None, follow: bool) -> Iterator[Line]:
    """Yield the lines of the last `seconds`, and with `follow` those that come. Raises `CallRefused`."""
    start = int((time.time() - seconds) * 1000)
    seen: dict[str, int] = {}
    while True:
        for line_id, line in _lines(aws, group, start, pattern, may_be_missing=follow):
            if line_id not in seen:
                seen[line_id] = line.milliseconds
                yield line
        if not follow:
            return
        start = max(start, int((time.time() - _OVERLAP_SECONDS) * 1000))
        seen = {line_id: milliseconds for line_id, milliseconds in seen.items() if milliseconds >= start}
        time.sleep(_POLL_SECONDS)


def _lines(
    aws: Aws, group: str, start: int, pattern: str | None, *, may_be_missing: bool
) -> Iterator[tuple[str, Line]]:
    """Yield ids and lines. The group does not exist before the first container starts."""
    parameters: dict[str, object] = {"logGroupName": group, "startTime": start}
    if pattern is not None:
        parameters["filterPattern"] = pattern
    while True:
        try:
            answer = aws(AwsCall("logs", "filter_log_events", parameters))
        except CallRefused as refused:
            if not refused.is_missing:
                raise
            if may_be_missing:
                return
            raise CallRefused(f"there is no log group {group} yet: no container has been started") from refused
        for event in answer["events"]:
            yield event["eventId"], Line(event["timestamp"], event["logStreamName"], event["message"].rstrip("\n"))
        if not answer.get("nextToken"):
            return
        parameters["nextToken"] = answer["nextToken"]


def parse_duration(text: str) -> int:
    """Return the seconds that a text such as "90s", "15m", "2h" or "1d" stands for. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise ConfigError(f"--since must be a number with s, m, h or d, such as 15m, got {text}")
    return int(match[1]) * _UNITS[match[2]]


def render(line: Line, *, with_stream: bool) -> str:
    """Return the line as `lmi logs` prints it."""
    return f"{line.stream}  {line.message}" if with_stream else line.message
