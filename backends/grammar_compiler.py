"""Compiles grammars outside the engine loop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import msgspec

from backends.grammar import Vocabulary
from backends.grammar_trial import Verdict
from backends.limited_pool import LimitedPool, Shared
from backends.limited_process import Exhausted, Expired, LimitedProcess, lower_priority, request_failures
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

TIME_LIMIT = 10.0
_KNOWN = 256
_KNOWN_CHARACTERS = 2**23
_QUICK = 0.2

Compiled = TypeVar("Compiled")


class GrammarCompiler(Generic[Compiled]):
    """Compiles grammars in its own threads. Each new grammar is first tried in a separate process.

    `build` turns a grammar's text into what the backend needs. It runs in a thread with lower priority than the loop.
    A trial may use `time_limit` seconds of CPU time, `cpu_limit` of them for compiling. Verdicts are cached, so that
    equal grammars get the same answer and need no second trial. A trial that fails without a verdict is not cached.
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
        self._time_limit = time_limit
        self._trials = LimitedPool("grammar-trial", "backends.grammar_trial", msgspec.json.encode(vocabulary))
        self._quick = ThreadPoolExecutor(1, "grammar", initializer=lower_priority)
        self._slow = ThreadPoolExecutor(1, "large-grammar", initializer=lower_priority)
        self._lock = threading.Lock()
        self._known: OrderedDict[StructuredOutputs, Verdict] = OrderedDict()
        self._characters = 0
        self._on_trial: dict[StructuredOutputs, Shared[Verdict]] = {}

    def submit(self, wanted: StructuredOutputs) -> Future[Compiled]:
        """Start compiling. The future raises `InvalidRequest` if the grammar is invalid or takes too much."""
        with self._lock:
            verdict = self._known.get(wanted)
            if verdict is not None:
                self._known.move_to_end(wanted)
        if verdict is not None:
            compiled: Future[Compiled] = Future()
            self._deliver(verdict, compiled)
            return compiled
        trial = self._on_trial.get(wanted)
        waiter = None if trial is None else trial.wait(self._after_trial)
        if waiter is None:
            waiter = self._start_trial(wanted).wait(self._after_trial)
        assert waiter is not None  # noqa: S101  a new trial cannot be cancelled yet
        return waiter

    def close(self) -> None:
        self._trials.close()
        for pool in (self._quick, self._slow):
            pool.shutdown(cancel_futures=True)

    def _start_trial(self, wanted: StructuredOutputs) -> Shared[Verdict]:
        verdict = self._trials.submit(lambda process, seconds: self._try(wanted, process, seconds))
        shared = self._on_trial[wanted] = Shared(verdict)
        verdict.add_done_callback(lambda done: self._end_trial(wanted, shared, done))
        return shared

    def _end_trial(self, wanted: StructuredOutputs, trial: Shared[Verdict], done: Future[Verdict]) -> None:
        if self._on_trial.get(wanted) is trial:
            del self._on_trial[wanted]
        if not done.cancelled() and done.exception() is None:
            self._remember(wanted, done.result())

    def _remember(self, wanted: StructuredOutputs, verdict: Verdict) -> None:
        with self._lock:
            if wanted in self._known:
                return
            self._known[wanted] = verdict
            self._characters += _size(wanted, verdict)
            while len(self._known) > _KNOWN or self._characters > _KNOWN_CHARACTERS:
                self._characters -= _size(*self._known.popitem(last=False))

    def _after_trial(self, trial: Future[Verdict], compiled: Future[Compiled]) -> None:
        error = trial.exception()
        if error is None:
            self._deliver(trial.result(), compiled)
        elif compiled.set_running_or_notify_cancel():
            compiled.set_exception(error)

    def _deliver(self, verdict: Verdict, compiled: Future[Compiled]) -> None:
        """Complete `compiled`: with an error now, or by building it in a thread."""
        if verdict.error is None:
            pool = self._quick if verdict.seconds <= _QUICK else self._slow
            pool.submit(self._complete, verdict.text, compiled)
        elif compiled.set_running_or_notify_cancel():
            compiled.set_exception(InvalidRequest(verdict.error, field="structured_outputs"))

    def _complete(self, text: str, compiled: Future[Compiled]) -> None:
        if not compiled.set_running_or_notify_cancel():
            return
        try:
            compiled.set_result(self._build(text))
        except Exception as error:  # noqa: BLE001  the error goes to whoever waits
            compiled.set_exception(error)

    def _try(self, wanted: StructuredOutputs, process: LimitedProcess, seconds: float) -> Verdict:
        """Try a grammar and return the verdict. Raises `Expired` if the turn was too short."""
        try:
            question = msgspec.json.encode(wanted)
        except UnicodeEncodeError:
            return Verdict(error="must be valid Unicode text")
        try:
            with request_failures("compiles grammars", "the grammar could not be tried"):
                answer = process.ask(question, seconds=min(seconds, self._time_limit))
        except Expired:
            if seconds < self._time_limit:
                raise
            return Verdict(error=f"takes more than {self._time_limit:g} s of processor time to compile")
        except Exhausted:
            return Verdict(error="takes too much memory to compile")
        verdict = msgspec.json.decode(answer, type=Verdict)
        if verdict.seconds > self._cpu_limit:
            return Verdict(error=f"takes {verdict.seconds:.2f} s to compile; at most {self._cpu_limit:g} s are allowed")
        return verdict


def _size(wanted: StructuredOutputs, verdict: Verdict) -> int:
    """Return the number of characters that a cached verdict keeps in memory."""
    texts = (wanted.json, wanted.regex, wanted.grammar, *(wanted.choice or ()), verdict.text, verdict.error)
    return sum(len(text) for text in texts if text is not None)
