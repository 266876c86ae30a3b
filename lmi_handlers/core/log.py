"""Logging on standard error: readable lines on a terminal, one JSON object per line anywhere else.

`LOG_FORMAT=json` or `LOG_FORMAT=text` in the environment takes precedence. Both formatters are short, and
python-json-logger has nothing for a terminal.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TextIO

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.line_writer import encoded, write_all
from lmi_handlers.core.log_relay import LogRelay
from lmi_handlers.core.redaction import without_hidden
from lmi_handlers.core.terminal import visible, write

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NOT_SHOWN = _STANDARD_FIELDS | {"_ray_timestamp_ns", "vllm_process_name"}
"""Ray and vLLM add the last two to each record of their process."""

_LOG_FORMATS = ("json", "text")
_OURS = ("lmi_handlers", "backends", "formatters")

MODEL_VARIABLE = "LMI_LOG_MODEL"
"""Environment variable with the name of the model that a process works for, if the server has several."""

REPLICA_VARIABLE, NODE_VARIABLE = "LMI_LOG_RAY_REPLICA", "LMI_LOG_NODE"
"""Environment variables with the names of the replica and its node, if the server is one of several on Ray.

The log calls the number of an engine within a server its `replica`.
"""

_FIELDS_OF_PROCESS = {"model": MODEL_VARIABLE, "ray_replica": REPLICA_VARIABLE, "node": NODE_VARIABLE}

_COLOURS_VARIABLE = "LMI_LOG_COLOURS"
"""Environment variable that is set if a `LogRelay` stands before a terminal that shows colours."""

_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_COLOURS = {logging.DEBUG: _DIM, logging.INFO: "\x1b[32m", logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}


_UNSEEN = re.compile("[\x80-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON allows unescaped and terminals act on, such as those of `kubectl logs`: control characters, directions."""


class JsonLines(logging.Formatter):
    """Renders a record as `{"time": .., "level": .., "logger": .., "message": .., <extra>}`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(_fields_of_process())
        line.update(_extra_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = msgspec.json.encode(line, enc_hook=str).decode()
        return text if text.isascii() else _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextLines(logging.Formatter):
    """Renders a record as `12:34:56.789 INFO    engine ready  backend=echo model=m`, in colour if `coloured`.

    Fields that are None are left out. A field `exception`, which is a traceback, follows on lines of its own. Control
    characters, which may come from a client, are escaped.
    """

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its newline, followed by the traceback, if any."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = min(record.levelno // 10 * 10, logging.ERROR)
        message = visible(record.getMessage())
        if record.name.partition(".")[0] not in _OURS:
            message = f"{record.name}: {message}"
        extra = _fields_of_process() | _extra_fields(record)
        tracebacks = [str(extra.pop("exception", None) or "")]
        fields = "".join(f" {key}={_shown(value)}" for key, value in extra.items() if value is not None)
        line = (
            f"{self._paint(_DIM, f'{clock}.{int(record.msecs):03d}')} "
            f"{self._paint(_COLOURS.get(level, ''), f'{record.levelname:<7}')} {message}"
        )
        if fields:
            line += f" {self._paint(_DIM, fields)}"
        if record.exc_info:
            tracebacks.append(self.formatException(record.exc_info))
        return "\n".join([line, *map(visible, filter(None, tracebacks))])

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._coloured and colour else text


class LogHandler(logging.Handler):
    """Writes each line at once and with one call, so that lines of several processes stay whole."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line."""
        try:
            self.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  as the handlers of the standard library do
            self.handleError(record)

    def write(self, line: str) -> None:
        """Write a line that is no record."""
        write_all(self._descriptor, encoded(line))

    def dropped(self, lines: int) -> str:
        """Return the line that stands in place of so many."""
        message = f"{lines} lines of the log were dropped because nobody read them"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, message, None, None)
        return f"{self.format(record)}\n"


def configure_logging() -> None:
    """Log to standard error, replacing any earlier configuration."""
    try:
        handler: logging.Handler = LogHandler(sys.stderr.fileno())
    except OSError:  # not a file, such as a test's
        handler = logging.StreamHandler(sys.stderr)
    as_text = log_format(os.environ, sys.stderr) == "text"
    handler.setFormatter(TextLines(coloured=_has_colours()) if as_text else JsonLines())
    logging.basicConfig(level=log_level(os.environ), handlers=[handler], force=True)
    # No line shows these, and collecting them takes half the time of a record. The library's documentation names all
    # four for that purpose ("Optimization" in its how-to).
    logging._srcfile = None  # noqa: SLF001  documented there
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def relay_log(count: Callable[[int], object]) -> LogRelay | None:
    """Read the log of this process and of those that it starts, so that none of them waits for whoever reads it.

    `count` is told how many lines are dropped. Returns None if standard error is a file, which always takes a line.
    """
    handler = next((handler for handler in logging.root.handlers if isinstance(handler, LogHandler)), None)
    descriptor = sys.stderr.fileno()
    if handler is None or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    os.environ["LOG_FORMAT"] = log_format(os.environ, sys.stderr)  # which the pipe would change
    if takes_colours(sys.stderr):
        os.environ[_COLOURS_VARIABLE] = "1"
    relay = LogRelay(descriptor, handler.dropped, count)
    atexit.register(relay.end)
    return relay


def log_format(environ: Mapping[str, str], stream: TextIO) -> str:
    """Return "json" or "text": the value of `LOG_FORMAT`, else "text" if `stream` is a terminal.

    Raises `ConfigError` if `LOG_FORMAT` has any other value.
    """
    given = environ.get("LOG_FORMAT", "").strip().lower()
    if given and given not in _LOG_FORMATS:
        raise ConfigError(f"LOG_FORMAT has value {given[:100]!r}: must be one of {', '.join(_LOG_FORMATS)}")
    return given or ("text" if stream.isatty() else "json")


def log_level(environ: Mapping[str, str]) -> int:
    """Return the level that SageMaker's variables ask for, by name or Python's number, from INFO to ERROR.

    What libraries log below INFO may contain prompts and keys. Other programs' values of `LOG_LEVEL` mean INFO.
    """
    text = environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL") or environ.get("LOG_LEVEL") or ""
    level = int(text) if re.fullmatch(r"\d{1,3}", text, re.ASCII) else logging.getLevelName(text.upper())
    return min(max(level, logging.INFO), logging.ERROR) if isinstance(level, int) else logging.INFO


def tell(kind: str, message: str) -> None:
    """Write `lmi: error: ..` or `lmi: warning: ..` to standard error, for the operator who has just started the server.

    These lines are plain text even when the log is JSON, because people read them first.
    """
    if _has_colours():
        kind = f"{_COLOURS[logging.ERROR if kind == 'error' else logging.WARNING]}{_BOLD}{kind}{_RESET}"
    if model := os.environ.get(MODEL_VARIABLE):
        message = f"model {model}: {message}"
    line = f"lmi: {kind}: {visible(message)}\n"
    for handler in logging.root.handlers:
        if isinstance(handler, LogHandler):
            handler.write(line)
            return
    write(sys.stderr, line)


def fail(*causes: str) -> NoReturn:
    """Write each line of the causes as an error, and exit with status 1."""
    for cause in causes:
        for line in cause.splitlines():
            tell("error", line)
    sys.exit(1)


def takes_colours(stream: TextIO) -> bool:
    """True if `stream` is a terminal that shows colours, and nobody has turned them off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _has_colours() -> bool:
    if _COLOURS_VARIABLE in os.environ and stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode):
        return True
    return takes_colours(sys.stderr)


def _fields_of_process() -> dict[str, object]:
    return {name: text for name, variable in _FIELDS_OF_PROCESS.items() if (text := os.environ.get(variable))}


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return without_hidden({key: value for key, value in vars(record).items() if key not in _NOT_SHOWN})


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_shown(item)}" for key, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(map(_shown, value))
    text = str(value)
    if not text.isprintable():
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text
