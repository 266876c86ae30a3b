"""Compiling grammars beside the engine's loop."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import msgspec

from backends.grammar import Vocabulary
from backends.grammar_trial import Verdict
from backends.preparing import give_way
from lmi_handlers.errors import InvalidRequest, RequestFailed
from lmi_handlers.sampling_params import StructuredOutputs

TIME_LIMIT = 10.0
_KNOWN = 64


Compiled = TypeVar("Compiled")


class GrammarCompiler(Generic[Compiled]):
    """Compiles what requests ask for in threads of its own, each new grammar first in a process that may die of it.

    `build` makes of a grammar's text what the backend needs, in a thread that gives way to the loop. Grammars that have been
    compiled before have that thread for themselves, so that they wait for no trial. A trial may take `time_limit` seconds, and
    compiling `cpu_limit` seconds of a processor.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        build: Callable[[str], Compiled],
        *,
        time_limit: float = TIME_LIMIT,
        cpu_limit: float = TIME_LIMIT,
    ) -> None:
        self._build = build
        self._cpu_limit = cpu_limit
        self._trial = Trial(vocabulary, time_limit)
        self._trying = ThreadPoolExecutor(1, "grammar-trial")
        self._building = ThreadPoolExecutor(1, "grammar", initializer=give_way)
        self._known: OrderedDict[StructuredOutputs, str] = OrderedDict()
        self._lock = threading.Lock()

    def submit(self, wanted: StructuredOutputs) -> Future[Compiled]:
        """Start; the future raises `InvalidRequest` where the grammar is wrong or takes too much."""
        with self._lock:
            text = self._known.get(wanted)
            if text is not None:
                self._known.move_to_end(wanted)
        if text is None:
            return self._trying.submit(self._try, wanted)
        return self._building.submit(self._build, text)

    def close(self) -> None:
        """End the threads and the process."""
        self._trial.kill()
        for pool in (self._trying, self._building):
            pool.shutdown(cancel_futures=True)
        self._trial.close()

    def _try(self, wanted: StructuredOutputs) -> Compiled:
        verdict = self._trial.run(wanted)
        if verdict.seconds > self._cpu_limit:
            raise InvalidRequest(
                f"takes {verdict.seconds:.2f} s to compile, at most {self._cpu_limit:g} s are possible",
                field="structured_outputs",
            )
        text = verdict.text
        compiled = self._building.submit(self._build, text).result()
        with self._lock:
            self._known[wanted] = text
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return compiled


class Trial:
    """The process of `grammar_trial`, started for the first grammar and again after one that was the end of it."""

    def __init__(self, vocabulary: Vocabulary, time_limit: float) -> None:
        self._vocabulary = vocabulary
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, wanted: StructuredOutputs) -> Verdict:
        """Return the verdict on a grammar that compiles. Raises `InvalidRequest`; one thread calls it."""
        try:
            line = msgspec.json.encode(wanted)
        except UnicodeEncodeError as error:
            raise InvalidRequest("must be valid Unicode text", field="structured_outputs") from error
        process = self._process or self._start()
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self._time_limit, give_up)
        timer.start()
        try:
            answer = _ask(process, line)
        finally:
            timer.cancel()
        if answer is None:
            self.close()
            reason = f"takes longer than {self._time_limit:g} s" if expired.is_set() else "takes too much memory"
            raise InvalidRequest(f"{reason} to compile", field="structured_outputs")
        verdict = msgspec.json.decode(answer, type=Verdict)
        if verdict.error is not None:
            raise InvalidRequest(verdict.error, field="structured_outputs")
        return verdict

    def kill(self) -> None:
        """Let `run` end, whatever it is at; any thread may call it."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with (
                contextlib.suppress(BrokenPipeError),
                process,
            ):  # closes the pipes, with what is left in them, and waits
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "backends.grammar_trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library's last words; the client gets the cause
        )
        if _ask(process, msgspec.json.encode(self._vocabulary)) is None:
            self.close()
            raise RequestFailed("the process that compiles grammars does not start")
        return process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes | None:
    """Return the answer's line, None where the process has ended instead."""
    assert process.stdin is not None  # noqa: S101  the type of a pipe that was asked for
    assert process.stdout is not None  # noqa: S101
    try:
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    answer = process.stdout.readline()
    return answer if answer.endswith(b"\n") else None  # it may end in the midst of a line
