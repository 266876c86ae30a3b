"""Compiling grammars beside the engine's loop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import msgspec

from backends.grammar import Vocabulary
from backends.grammar_trial import Verdict
from backends.limited_process import Ended, LimitedProcess
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
        self._time_limit = time_limit
        self._trial = LimitedProcess("backends.grammar_trial", msgspec.json.encode(vocabulary))
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
        verdict = self._ask(wanted)
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

    def _ask(self, wanted: StructuredOutputs) -> Verdict:
        """Return the verdict on a grammar that compiles. Raises `InvalidRequest`; one thread calls it."""
        try:
            answer = self._trial.ask(msgspec.json.encode(wanted), seconds=self._time_limit)
        except UnicodeEncodeError as error:
            raise InvalidRequest("must be valid Unicode text", field="structured_outputs") from error
        except Ended as error:
            reason = f"takes longer than {self._time_limit:g} s" if error.expired else "takes too much memory"
            raise InvalidRequest(f"{reason} to compile", field="structured_outputs") from error
        except RuntimeError as error:
            raise RequestFailed("the process that compiles grammars does not start") from error
        verdict = msgspec.json.decode(answer, type=Verdict)
        if verdict.error is not None:
            raise InvalidRequest(verdict.error, field="structured_outputs")
        return verdict
