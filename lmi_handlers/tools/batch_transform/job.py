"""A transform job: the records of all files go through the server, several requests at a time, and stay in order."""

from __future__ import annotations

import contextlib
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed
from lmi_handlers.model_files.storage import Folder
from lmi_handlers.tools.batch_transform.endpoint import ServerLost
from lmi_handlers.tools.batch_transform.records import InvalidFile, Record, batches
from lmi_handlers.tools.batch_transform.settings import MAX_TRANSFORM_MB, Settings
from lmi_handlers.tools.batch_transform.storage import SUFFIX, OutputFile
from lmi_handlers.tools.batch_transform.transform import Transform, Transformed
from lmi_handlers.tools.client.inputs import InputFile

_AHEAD = 4
"""Requests that may wait for their turn to be written, per request at a time: a slow one does not hold up the others."""


class FileReport(msgspec.Struct):
    """The outcome of a file. `failure` says why it has no output; otherwise `output` says where that is."""

    name: str
    seconds: float = 0.0
    records: int = 0
    errors: int = 0
    output: str | None = None
    failure: str | None = None


class TransformJob:
    """Transforms files. Memory holds a few requests and their answers, whatever the size of the files."""

    def __init__(
        self, transform: Transform, settings: Settings, folder: Folder, report: Callable[[FileReport], None]
    ) -> None:
        """`report` is called once per file, when its output is complete or it has failed."""
        self._transform = transform
        self._settings = settings
        self._folder = folder
        self._report = report
        self._pending: deque[_Step] = deque()
        self._gone: Future[None] = Future()

    def run(self, files: list[InputFile]) -> None:
        """Transform all files. Raises `ServerLost` if the server is gone."""
        pool = ThreadPoolExecutor(self._settings.max_concurrent)
        try:
            for file in files:
                self._start(pool, file)
            while self._pending:
                self._pending.popleft().finish()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for step in self._pending:
                step.writer.discard()

    def _start(self, pool: ThreadPoolExecutor, file: InputFile) -> None:
        """Send a file's records. Its output may still be written while later files are sent."""
        writer = _Writer(file.name, self._report)
        failure = None
        try:
            writer.open(self._folder)
            with file.open(compressed=self._settings.gzip) as content:
                for batch in batches(content, self._settings):
                    self._make_room()
                    if writer.failed:
                        return
                    self._pending.append(_Sent(writer, batch, pool.submit(self._transform.output, batch), self._gone))
        except EOFError:  # from gzip
            failure = "its compressed data is cut off"
        except (OSError, zlib.error, InvalidFile, ConfigError, LoadFailed) as error:
            failure = str(error)
        except BaseException:  # the job ends
            writer.discard()
            raise
        self._pending.append(_End(writer, failure))

    def _make_room(self) -> None:
        """Write what is complete, and wait while too much is on its way."""
        if self._gone.done():
            self._gone.result()
        most = _AHEAD * self._settings.max_concurrent
        while self._pending and (
            self._pending[0].is_done
            or len(self._pending) >= most
            or sum(step.size for step in self._pending) > MAX_TRANSFORM_MB << 20
        ):
            self._pending.popleft().finish()


class _Writer:
    """Writes the output of a file, and reports on it."""

    def __init__(self, name: str, report: Callable[[FileReport], None]) -> None:
        self._send = report
        self._report = FileReport(name)
        self._started = time.monotonic()
        self._output: OutputFile | None = None

    @property
    def failed(self) -> bool:
        return self._report.failure is not None

    def open(self, folder: Folder) -> None:
        """Raises `OSError` or `ConfigError`."""
        self._output = OutputFile(folder, self._report.name + SUFFIX)

    def write(self, part: Transformed) -> None:
        """Raises `OSError`."""
        if self._output is not None:
            self._output.write(part.data)
        self._report.records += part.records
        self._report.errors += part.errors

    def end(self) -> None:
        """Complete the output. Raises `OSError`, `ConfigError` or `LoadFailed`."""
        if self._output is not None:
            self._report.output = self._output.complete()
        self._tell()

    def fail(self, cause: str) -> None:
        """Drop the output."""
        self._report.failure = cause
        self.discard()
        self._tell()

    def discard(self) -> None:
        if self._output is not None:
            self._output.discard()

    def _tell(self) -> None:
        self._report.seconds = time.monotonic() - self._started
        self._send(self._report)


class _Step(ABC):
    """Something that is done with the output of a file, in its turn."""

    is_done = True
    """True if it need not be waited for."""
    size = 0
    """Bytes of the records, or of their output once that is known."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def finish(self) -> None:
        """Wait for it and do it, unless the file has failed. Raises `ServerLost`."""
        if self.writer.failed:
            return
        try:
            self.do()
        except ServerLost:
            raise
        except (OSError, LMIError) as error:
            self.writer.fail(str(error))
        except Exception as error:  # noqa: BLE001  the other files go on
            self.writer.fail(f"{type(error).__name__}: {error}")

    @abstractmethod
    def do(self) -> None:
        """Raises what makes the file fail."""


class _Sent(_Step):
    """Records that have been sent. `gone` fails as soon as any request of the job finds the server unreachable."""

    def __init__(self, writer: _Writer, batch: list[Record], future: Future[Transformed], gone: Future[None]) -> None:
        super().__init__(writer)
        self._future = future
        self._gone = gone
        self.size = sum(len(record) for record in batch if isinstance(record, bytes))
        future.add_done_callback(self._know_output)

    @property
    def is_done(self) -> bool:  # type: ignore[override]
        return self._future.done()

    def _know_output(self, future: Future[Transformed]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.size = len(future.result().data)
        elif isinstance(error, ServerLost):
            with contextlib.suppress(InvalidStateError):  # another one was first
                self._gone.set_exception(error)

    def do(self) -> None:
        either: tuple[Future[Any], ...] = (self._future, self._gone)
        wait(either, return_when=FIRST_COMPLETED)
        if self._gone.done():
            self._gone.result()
        self.writer.write(self._future.result())


class _End(_Step):
    """The end of a file, or why it could not be read to its end."""

    def __init__(self, writer: _Writer, failure: str | None) -> None:
        super().__init__(writer)
        self._failure = failure

    def do(self) -> None:
        if self._failure is None:
            self.writer.end()
        else:
            self.writer.fail(self._failure)
