"""Failures of a model's own code, with the author's frames only."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.custom_code.messages import NOT_LOADED, LoadError

_OURS = str(Path(__file__).parents[1])


class MustBeReplaced(SystemExit):
    """The process can answer nothing more: one of our own tasks failed. No error of a model's code does this."""


def load_error(error: BaseException, code: CustomCode) -> LoadError:
    """Describe why the code cannot be used: file and line, and whether another try may help."""
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        where = _last_line(traceback.extract_tb(error.__traceback__), code)
    message = str(error) if isinstance(error, ConfigError) else f"{where}: {cause}"
    temporary = isinstance(load_failure(ConfigError(message), error), LoadFailed)
    return LoadError(message, "" if isinstance(error, ConfigError) else author_traceback(error), temporary)


def load_timeout(thread: threading.Thread, code: CustomCode) -> LoadError:
    """Describe where the thread is that loads the code."""
    stack = traceback.extract_stack(sys._current_frames()[thread.ident or 0])  # noqa: SLF001  documented for debuggers
    frames = [frame for frame in stack if not _is_ours(frame.filename)]
    listed = "".join(traceback.format_list(frames)).rstrip()
    return LoadError(f"{_last_line(stack, code)}: {NOT_LOADED}", f"It is here (most recent call last):\n{listed}")


def _last_line(stack: traceback.StackSummary, code: CustomCode) -> str:
    """Return file and line of the last frame that is in the model's folder."""
    frames = [frame for frame in stack if Path(frame.filename).is_relative_to(code.directory)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else code.path


def described(error: BaseException) -> str:
    """Return what an error says, or else its type. An error of the author's may fail to say anything."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  whatever the author's `__str__` raises
        return type(error).__name__


def named(error: BaseException) -> str:
    """Return the type of an error and what it says, such as `SystemExit: 3`."""
    kind, text = type(error).__name__, plain(described(error))
    return kind if text == kind else f"{kind}: {text}"


def plain(value: object) -> str:
    """Return text that can be sent. A client's JSON may bring halves of surrogate pairs into an error or a header."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def author_traceback(error: BaseException) -> str:
    """Return the traceback without this server's own frames."""
    formatted = traceback.TracebackException.from_exception(error)
    _drop_ours(formatted, set())
    return "".join(formatted.format()).rstrip()


def _drop_ours(described: traceback.TracebackException, seen: set[int]) -> None:
    if id(described) in seen:
        return
    seen.add(id(described))
    kept = [frame for frame in described.stack if not _is_ours(frame.filename)]
    described.stack = traceback.StackSummary.from_list(kept)
    for cause in (described.__cause__, described.__context__):
        if cause is not None:
            _drop_ours(cause, seen)


def _is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen "))
