"""The processes that run the code: kept alive, joined by more while requests have to wait, and given the requests."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.custom_code.adapters import CodeAdapters
from lmi_handlers.custom_code.job import PoolJob, WaitingJobs
from lmi_handlers.custom_code.messages import ChangeAdapter
from lmi_handlers.custom_code.runner import CodeError, CodeRunner
from lmi_handlers.engine.admission import DynamicBatch
from lmi_handlers.engine.status import not_ready
from lmi_handlers.workers.back_off import back_off

_MOMENT = 0.2
"""Seconds that a request waits before another process is started for it."""

_LOOK_INTERVAL = 0.1

logger = logging.getLogger(__name__)


class CodeProcesses:
    """Hands requests to `code.processes` processes, and to more of them, up to `code.max_processes`, when these are busy.

    Each process has a place, a number from 0 on, which decides its GPU. `on_change` is told why no process can answer
    requests, or None once one can. `running` is the number of requests that are being answered.
    """

    def __init__(
        self,
        code: CustomCode,
        properties: ServingProperties,
        on_change: Callable[[str | None], object],
        adapters: CodeAdapters,
    ) -> None:
        self._code = code
        self._properties = properties
        self._on_change = on_change
        self._adapters = adapters
        admission = DynamicBatch(properties.batch_size, properties.max_batch_delay / 1000)
        self.waiting = WaitingJobs(properties.job_queue_size, admission)
        self.running = 0
        self._runners: dict[int, CodeRunner] = {}
        self._lost: set[int] = set()
        self._cause = ""
        self._extra: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self, code: CustomCode, timeout: float) -> None:
        """Start the first processes, together, with the code as it is now, within `timeout` seconds.

        Raises the `CodeError` of any of them.
        """
        self._code = code
        starts = (CodeRunner.start(code, place, timeout) for place in range(code.processes))
        self._runners.update(enumerate(await asyncio.gather(*starts)))
        await self._adapters.begin(code, [*self._runners.values()])

    def reload(self) -> None:
        """Replace all processes, because the code has changed. Calls that are being made may finish.

        Requests wait meanwhile. They are rejected if the code cannot be loaded.
        """
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()
        for runner in self._runners.values():
            retire = asyncio.ensure_future(runner.retire())
            self._retiring.add(retire)
            retire.add_done_callback(self._retiring.discard)

    async def run(self) -> None:
        """Keep the first processes, and start and end the others, for ever."""
        await asyncio.gather(self._grow(), *(self._keep(place, runner) for place, runner in self._runners.items()))

    def submit(self, job: PoolJob) -> None:
        """Answer a request as soon as a process is free. Raises `QueueFull`."""
        self.waiting.add(job)
        self._hand_out()

    async def change_adapter(self, message: ChangeAdapter) -> None:
        """Make a change of adapters. Raises like `CodeAdapters.change`."""
        async with self._adapters.lock:
            try:
                await self._adapters.change(message, [*self._runners.values()])
            finally:
                self._hand_out()

    def _hand_out(self) -> None:
        """Start as many calls as there are batches and free processes."""
        while (runner := self._choose()) is not None and (jobs := self.waiting.take()):
            self.running += len(jobs)
            call = runner.call(jobs, self._properties.predict_timeout, dynamic=self._properties.batch_size > 1)
            call.add_done_callback(functools.partial(self._release, jobs))
        if self._timer is not None:
            self._timer.cancel()
        delay = self.waiting.delay() if runner is not None else None
        self._timer = None if delay is None else asyncio.get_running_loop().call_later(delay, self._hand_out)

    def _release(self, jobs: list[PoolJob], _: object) -> None:
        self.running -= len(jobs)
        self._hand_out()

    def _choose(self) -> CodeRunner | None:
        """Return the least busy of the first processes, or one of the others if they have no time.

        Of equal ones, it is the one that has been idle for longest: `Output.finalize` may still run in another.
        """
        free = [
            (place >= self._code.processes, -runner.free, runner.idle_since, place)
            for place, runner in self._runners.items()
            if runner.free
        ]
        return self._runners[min(free)[-1]] if free else None

    async def _start(self, place: int) -> CodeRunner:
        """Start a process with the code as it is at the end, and with its adapters. Raises `CodeError`."""
        while True:
            changed = self._changed
            runner = await CodeRunner.start(self._code, place, self._properties.model_loading_timeout)
            async with self._adapters.lock:
                await self._adapters.restore(runner, [*self._runners.values()])
                if not changed.done():
                    self._runners[place] = runner  # so that it is told of what changes from now on
                    return runner
            await runner.end()

    async def _keep(self, place: int, runner: CodeRunner) -> None:
        """Replace a process whenever it ends: with back-off unless a request has ended it."""
        failures = 0
        while True:
            changed = self._changed
            await self._use(place, runner)
            if changed.done():
                failures = 0
            else:
                failures = 0 if runner.was_used else failures + 1
                logger.error("a process that runs the model's code has ended", extra={"restart_in": back_off(failures)})
            self._cause = f"{self._code.path}: its process has ended before any request"
            while True:
                if failures:
                    self._lost.add(place)
                    self._tell()
                    await asyncio.wait({changed}, timeout=back_off(failures))
                changed = self._changed
                try:
                    runner = await self._start(place)
                    break
                except CodeError as error:
                    failures, self._cause = failures + 1, str(error)
                    log_error(error)
            self._lost.discard(place)

    async def _grow(self) -> None:
        """Start another process, one at a time, while requests have waited for a moment and all processes are busy."""
        failures = 0
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            if self.waiting.oldest_wait() < _MOMENT or self._choose() is not None:
                continue
            place = next(place for place in itertools.count() if place not in self._runners)
            if not self._code.processes <= place < self._code.max_processes:  # one of the first is replaced already
                continue
            try:
                runner = await self._start(place)
            except CodeError as error:
                failures += 1
                log_error(error)
                await asyncio.sleep(back_off(failures))
                continue
            failures = 0
            logger.info("requests wait: one more process runs the model's code", extra={"processes": place + 1})
            use = asyncio.ensure_future(self._use(place, runner, self._properties.max_idle_time))
            self._runners[place] = runner
            self._extra.add(use)
            use.add_done_callback(self._extra.discard)

    async def _use(self, place: int, runner: CodeRunner, max_idle_time: float | None = None) -> None:
        """Give requests to a process until it has ended. End it once it has had none for `max_idle_time` seconds."""
        self._runners[place] = runner
        self._tell()
        self._hand_out()
        while not runner.ended.done():
            wait = None if max_idle_time is None else max_idle_time - runner.idle
            if wait is not None and wait <= 0:
                logger.info("a process that runs the model's code is idle and is ended")
                break
            await asyncio.wait({runner.ended}, timeout=wait)
        del self._runners[place]
        self._tell()
        await runner.end()

    def _tell(self) -> None:
        """Say whether requests can be answered. Those that wait for a process that is replaced at once can."""
        is_lost = not self._runners and len(self._lost) == self._code.processes
        self._on_change(self._cause if is_lost else None)
        if is_lost:
            for job in self.waiting.clear():
                job.fail(EngineNotReady(not_ready(self._cause)))


def log_error(error: CodeError) -> None:
    """Log why the code cannot be loaded, with its own frames."""
    logger.error("the model's code cannot be loaded", extra={"cause": str(error), "exception": error.traceback or None})
