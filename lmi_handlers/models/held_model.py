"""A model in one web worker: its application, and its requests in flight."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lmi_handlers.core.event_loop import RunBeside
from lmi_handlers.models.registry import RegisteredModel, users_file
from lmi_handlers.serving.served import Served

_TOUCH_INTERVAL = 0.5
_READING = ("GET", "HEAD")


class HeldApp(Protocol):
    """The WSGI application that serves one model."""

    model: Served

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""

    def use_threads(self, run_beside: RunBeside) -> None:
        """Run long work with `run_beside`."""


class HeldModel:
    """A model's application and its requests in flight. The manager ends no engine that may still get requests."""

    def __init__(self, entry: RegisteredModel, runtime_dir: Path, app: HeldApp) -> None:
        self.entry = entry
        self.app = app
        self.in_flight = 0
        self._uses = 0
        self._touched = 0.0
        self._users = os.open(users_file(runtime_dir), os.O_RDWR)
        with contextlib.suppress(BlockingIOError):  # it is being unloaded, and we will be told soon
            fcntl.flock(self._users, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request, and count it until its answer has been sent."""
        uses = uses_model(environ)
        self.in_flight += 1
        self._uses += uses
        self.touch()
        leave = partial(self._leave, uses)
        try:
            return _Answer(self.app(environ, start_response), leave)
        except BaseException:
            leave()
            raise

    def touch(self) -> None:
        """Note that the model is in use, if it is."""
        now = time.monotonic()
        if self._uses and now - self._touched >= _TOUCH_INTERVAL:
            self._touched = now
            os.utime(self._users)

    def close(self) -> None:
        """Let the manager end the engines. There are no requests in flight, and will be none."""
        self.app.model.close()
        os.close(self._users)

    def _leave(self, uses: bool) -> None:
        if uses:
            self._touched = 0.0
            self.touch()
        self.in_flight -= 1
        self._uses -= uses


def uses_model(environ: Mapping[str, Any]) -> bool:
    """Tell whether a request uses its model. Those that only read need no API key: they neither wake it nor keep it awake."""
    return environ["REQUEST_METHOD"] not in _READING


def hold_model(entry: RegisteredModel, runtime_dir: Path, app: HeldApp) -> HeldModel:
    """Return a model that this worker serves from now on. Raises `OSError` if its directory has gone."""
    try:
        return HeldModel(entry, runtime_dir, app)
    except OSError:
        app.model.close()
        raise


class _Answer:
    """An answer whose end is noted, however it ends."""

    def __init__(self, body: Iterable[bytes], on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close = on_close

    def share_turns(self) -> None:
        """Do what a `StreamBody` does, if it is one."""
        if (share := getattr(self._body, "share_turns", None)) is not None:
            share()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._on_close()
