"""A web worker's metrics: each request is counted once, at its end; tokens are counted while they are generated."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineNotReady,
    InvalidChat,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
)
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics import catalogue, engine_info, keys
from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.cells import Cells, totals
from lmi_handlers.metrics.series import Values, exposition
from lmi_handlers.metrics.shadow import ShadowComparison, ShadowOutcome

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CAUSES: tuple[tuple[type[LMIError] | tuple[type[LMIError], ...], str], ...] = (
    (InvalidChat, "template"),
    ((InvalidRequest, ModelNotFound), "validation"),
    (QueueFull, "overloaded"),
    (ClientDisconnected, "dropped"),
    (DeadlineExceeded, "timeout"),
    (EngineNotReady, "not_ready"),
    (LMIError, "generation"),
)
_FINISHED = {
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
}
_USERS = (keys.KEYS, keys.TENANTS)
_UNFINISHED = {"dropped": "abort", "timeout": "abort", "not_ready": "abort", "generation": "error"}
"""By cause of failure, how the request's unfinished sequences are counted. Other causes have none."""


def page_of(models: Iterable[RequestMetrics]) -> str:
    """Return the text for `GET /metrics` of a server with several models. All series name their model."""
    known = list(models)
    own = exposition(CATALOGUE.metrics, [model.values() for model in known], labels_all=True)
    return (
        own
        + engine_info.exposition([model.engines() for model in known])
        + "".join(keys.exposition(series, [model.used_by(series) for model in known]) for series in _USERS)
    )


class RequestMetrics:
    """Request metrics of one worker, and the page with those of all workers. Thread-safe.

    `directory` holds the values of all processes of this server.
    """

    def __init__(self, directory: Path, model_name: str) -> None:
        self._directory = directory
        self._name = {"model_name": model_name}
        self._model_labels = {**self._name, "engine": "0"}
        self._cells = Cells(directory, CATALOGUE)
        self._users = {series: keys.LabelMetrics(series, keys.series_dir(directory, series)) for series in _USERS}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop counting."""
        self._cells.close()
        for labels in self._users.values():
            labels.close()

    def page(self) -> str:
        """Return the text for `GET /metrics`."""
        _, engines = self.engines()
        return (
            exposition(CATALOGUE.metrics, [self.values()])
            + engine_info.exposition([({}, engines)])
            + "".join(keys.exposition(series, [({}, self.used_by(series)[1])]) for series in _USERS)
        )

    def values(self) -> Values:
        """Return the metrics of all workers, and the labels that name the model."""
        return totals(self._directory, CATALOGUE), self._model_labels

    def engines(self) -> tuple[Mapping[str, str], Mapping[str, engine_info.EngineInfo]]:
        """Return the labels that name the model, and the facts about its engines."""
        return self._name, engine_info.read_engines(self._directory)

    def used_by(self, series: keys.UsageSeries) -> tuple[Mapping[str, str], keys.UsageByLabel | None]:
        """Return the labels that name the model, and its use by each API key and tenant."""
        return self._name, self._users[series].values()

    def generated(self, tokens: int, gaps: Iterable[tuple[float, int]]) -> None:
        """Count new `tokens`. `gaps` are seconds per token since a sequence's previous tokens, each for so many tokens."""
        with self._lock:
            self._cells.add(catalogue.GENERATION_TOKENS, tokens)
            for gap, times in gaps:
                self._cells.observe(gap, catalogue.INTER_TOKEN_LATENCY, times=times)

    def responded(self, status: int) -> None:
        """Count a response, whatever it answers."""
        known = str(status)
        with self._lock:
            self._cells.add(catalogue.RESPONSES, 1, known if known in catalogue.STATUSES else catalogue.OTHER_STATUS)

    def shadow_ended(self, outcome: ShadowOutcome) -> None:
        """Count an answer that was not compared with the shadow engine."""
        with self._lock:
            self._cells.add(catalogue.SHADOW_ANSWERS, 1, outcome.value)

    def shadow_compared(self, comparison: ShadowComparison) -> None:
        """Count an answer that was compared with the shadow engine."""
        sampling = comparison.sampling
        with self._lock:
            self._cells.add(catalogue.SHADOW_ANSWERS, 1, ShadowOutcome.COMPARED.value)
            self._cells.add(catalogue.SHADOW_TOKENS, comparison.tokens, sampling)
            self._cells.add(catalogue.SHADOW_AGREEING_TOKENS, comparison.agreeing, sampling)
            self._cells.add(catalogue.SHADOW_NATS, comparison.shadow_nats, sampling)
            self._cells.add(catalogue.SHADOW_MODEL_NATS, comparison.model_nats or 0.0, sampling)
            self._cells.add(catalogue.SHADOW_READ_TOKENS, comparison.read_tokens)
            self._cells.observe(comparison.seconds, catalogue.SHADOW_SECONDS)

    def ended(self, usage: Usage, error: LMIError | None) -> None:
        """Count a request that was answered in full, or that failed with `error`."""
        duration = time.monotonic() - usage.started
        with self._lock:
            self._cells.add(catalogue.REQUESTS)
            for series, label in ((keys.KEYS, usage.key_label), (keys.TENANTS, usage.tenant)):
                if label:
                    with contextlib.suppress(OSError):  # no room on the disk for a new label
                        self._users[series].ended(usage, label)
            for reason in usage.finish_reasons:
                self._cells.add(catalogue.FINISHED, 1, _FINISHED[FinishReason(reason)])
            self._measure_start(usage)
            if usage.joined:
                self._cells.add(catalogue.JOINED)
            charged = usage.charged()
            self._cells.add(catalogue.ENGINE_SECONDS, charged.engine_time or 0.0)
            self._cells.add(catalogue.KV_BLOCK_SECONDS, charged.kv_block_seconds)
            if error is None:
                self._cells.add(catalogue.SUCCESSES)
                self._measure_answer(usage, duration)
            else:
                self._count_failure(usage, error)

    def _count_failure(self, usage: Usage, error: LMIError) -> None:
        cause = failure_cause(error)
        self._cells.add(catalogue.FAILED, 1, cause)
        unfinished = usage.sequences - len(usage.finish_reasons)
        if cause in _UNFINISHED:
            self._cells.add(catalogue.FINISHED, unfinished, _UNFINISHED[cause])

    def _measure_start(self, usage: Usage) -> None:
        """Observe the values that are known once a request has its first token, even if it failed later."""
        first, validation, queue = usage.first_token_time, usage.validation_time, usage.queue_time
        if first is None or validation is None or queue is None:
            return
        if usage.is_first:
            self._cells.add(catalogue.PROMPT_TOKENS, usage.prompt_tokens)
            self._cells.add(catalogue.CACHED_TOKENS, usage.cached_tokens)
        self._cells.observe(max(0, usage.prompt_tokens - usage.cached_tokens), catalogue.REQUEST_COMPUTED_TOKENS)
        self._cells.observe(usage.samples, catalogue.REQUEST_SAMPLES)
        self._cells.observe(usage.prompt_tokens, catalogue.INPUT_LENGTH, catalogue.REQUEST_PROMPT_TOKENS)
        self._cells.observe(usage.max_tokens, catalogue.MAX_NEW_TOKENS, catalogue.REQUEST_MAX_TOKENS)
        self._cells.observe(validation, catalogue.VALIDATION_DURATION)
        self._cells.observe(queue, catalogue.QUEUE_DURATION, catalogue.QUEUE_TIME)
        self._cells.observe(first, catalogue.TIME_TO_FIRST_TOKEN)
        self._cells.observe(max(0.0, first - validation - queue), catalogue.PREFILL_TIME)

    def _measure_answer(self, usage: Usage, duration: float) -> None:
        """Observe the values that are known once the answer is complete."""
        tokens, sequences = usage.generated_tokens, usage.sequences
        self._cells.observe(duration, catalogue.DURATION, catalogue.E2E_LATENCY)
        self._cells.observe(tokens, catalogue.GENERATED_TOKENS, catalogue.REQUEST_GENERATION_TOKENS)
        self._cells.observe(usage.longest_sequence, catalogue.REQUEST_LONGEST_SEQUENCE)
        first, validation, queue = usage.first_token_time, usage.validation_time, usage.queue_time
        if first is None or validation is None or queue is None:
            return
        inference, decode = max(0.0, duration - validation - queue), max(0.0, duration - first)
        self._cells.observe(inference, catalogue.INFERENCE_DURATION, catalogue.INFERENCE_TIME)
        self._cells.observe(decode, catalogue.DECODE_TIME)
        # Sequences run in parallel: while one gets a token, each of the others gets one too.
        if tokens:
            self._cells.observe(inference * sequences / tokens, catalogue.TIME_PER_TOKEN)
        if tokens > sequences:
            self._cells.observe(decode * sequences / (tokens - sequences), catalogue.TIME_PER_OUTPUT_TOKEN)


def failure_cause(error: LMIError) -> str:
    """Return the cause by which a failed request is counted, one of `FAILURES`."""
    return next(name for kinds, name in _CAUSES if isinstance(error, kinds))
