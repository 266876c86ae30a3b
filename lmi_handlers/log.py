"""Logging: one JSON object a line on standard error, with whatever `extra` fields the call gave."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Renders a record as `{"time": .., "level": .., "logger": .., "message": .., <extra>}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its newline."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logging(level: int = logging.INFO) -> None:
    """Send everything from `level` up to standard error, in place of whatever was configured."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
