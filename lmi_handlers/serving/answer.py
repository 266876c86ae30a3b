"""Turns the engine's tokens into text, and the text into response bytes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from formatters.base import Formatter
from lmi_handlers.core.errors import ClientDisconnected, InvalidRequest, LMIError, RequestFailed
from lmi_handlers.core.event_loop import RunBeside, at_once, give_way
from lmi_handlers.core.outputs import FinishReason, TextDelta, TokenOutput
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine.client import InFlightRequest
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.serving.beam_generation import BeamGeneration
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.serving.shadow import Sample
from lmi_handlers.serving.token_counts import TokenCounts
from lmi_handlers.text.sequence import SequenceText

logger = logging.getLogger(__name__)


class PooledPrompt:
    """Turns the only `TokenOutput` of an embedded prompt into a `TextDelta`."""

    def __init__(self, index: int) -> None:
        self.index = index

    def feed(self, output: TokenOutput) -> TextDelta:
        return TextDelta(index=self.index, embedding=output.embedding, finish_reason=output.finish_reason)


class Continued(NamedTuple):
    """An answer that can be continued: the tokens that were `generated` so far, and what makes its token of them."""

    generated: list[int]
    seal: Callable[[Sequence[int]], str | None]


class Listener(Protocol):
    """Iterates over an answer, and is told when to. Its methods must not wait."""

    def advance(self) -> None:
        """The next chunk is known, and made without waiting."""

    def resume(self) -> None:
        """The next chunk is known, or there is none, but to make it may take long."""


class Answer:
    """An answer being generated. Iterating yields response bytes in whole records; `close` aborts it.

    There is a chunk for each time that outputs arrive. It is empty if they add nothing yet.

    An error before the first bytes is raised. A later error is written as a record, if the format has one, and stored
    in `failure`. Either way it ends the answer.
    """

    def __init__(
        self,
        generation: InFlightRequest | BeamGeneration,
        formatter: Formatter,
        texts: Sequence[SequenceText | PooledPrompt],
        usage: Usage,
        metrics: RequestMetrics,
        parsed: Parsed,
        run_beside: RunBeside = at_once,
        keep_alive: float = math.inf,
        sample: Sample | None = None,
        continued: Continued | None = None,
    ) -> None:
        """A stream that has been silent for `keep_alive` seconds says that it goes on. `sample` is for the shadow engine.

        With `continued`, an answer that a time limit ends can be continued.
        """
        self.content_type = formatter.content_type
        self.streams = formatter.streams
        self.failure: LMIError | None = None
        self.deadline = generation.deadline.time
        self._formatter = formatter
        self._generation = generation
        self._texts = texts
        self._samples = formatter.request.sampling_params.n
        self.usage = usage
        self._alias = parsed.alias
        self._rewriter = parsed.rewriter
        self._on_complete = parsed.on_complete
        self._text: list[str] = []
        self._continued = continued
        self._run_beside = run_beside
        self._keep_alive = keep_alive if formatter.streams else math.inf
        self._sample = sample
        self._size = 0
        self._counts = TokenCounts(len(texts), metrics, shared=generation.shared)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def tell(self, reader: Listener) -> bool:
        """Tell `reader` from now on when there is a chunk. Returns False, and never does, if any chunk may take long."""
        if not isinstance(self._generation, InFlightRequest) or self._makes_wait:
            return False
        self._generation.on_arrival = partial(_tell, reader)
        return True

    def is_over(self) -> bool:
        """Tell whether no more outputs will arrive, and iterating to the end does not wait for another process."""
        return isinstance(self._generation, InFlightRequest) and not self._generation.running and not self._makes_wait

    def ready(self) -> bool:
        """Tell whether iterating goes on without waiting for the engine. Only known after `tell` has returned True."""
        return isinstance(self._generation, InFlightRequest) and self._generation.ready()

    @property
    def _makes_wait(self) -> bool:
        return self._formatter.waits or self._rewriter is not None

    def close(self) -> None:
        """Abort the generation."""
        self._chunks.close()
        self._generation.close()
        self._close_formatter()

    def _run(self) -> Generator[bytes, None, None]:
        begun = False
        with self._generation as generation:
            generation.silent_at = time.monotonic() + self._keep_alive
            try:
                for batch in generation:
                    if generation.truncated is not None:
                        self._note_cut(generation.truncated)
                    chunk = b"".join(
                        [self._feed(item) for item in (batch if len(batch) <= _AT_ONCE else _in_turns(batch))]
                    )
                    if not chunk and time.monotonic() >= generation.silent_at:
                        chunk = self._formatter.keep_alive()
                    yield chunk
                    if chunk:
                        begun = True
                        if self._keep_alive < math.inf:
                            generation.silent_at = time.monotonic() + self._keep_alive
                last = self._rewritten(self._runner_of_formatter(self._size)(self._formatter.finish))
                if self._on_complete is not None:
                    self._runner(self._size)(self._on_complete, "".join(self._text))
            except GeneratorExit:
                self.failure = self._generation.failure or ClientDisconnected()
                raise
            except Exception as error:  # noqa: BLE001  every error is reported to the client
                if not begun:
                    raise self._told(error) from None
                self.failure = self._told(error).without_frames()
                last = self._formatter.error(self.failure)
            finally:
                self._close_formatter()
                self._counts.flush()
                self._note_last_token()
                self._note_meter()
                self.usage.joined, self.usage.paid = generation.joined, generation.paid
        if last:
            yield last
        if self._sample is not None and self.failure is None:
            self._sample.end()

    def _feed(self, item: SequenceOutput) -> bytes:
        if self._sample is not None:
            item = self._sample.feed(item)
        usage, output = self.usage, item.output
        now = time.monotonic()
        if usage.first_token_time is None:
            usage.first_token_time = now - usage.started
            usage.queue_time = item.queue_time
        if output.num_prompt_tokens is not None:
            usage.prompt_tokens = output.num_prompt_tokens
            self._formatter.prompt_tokens = (output.num_prompt_tokens,)
        if output.num_cached_tokens is not None and item.index % self._samples == 0:
            # A prompt's other samples also find what the first one has computed, but the prompt is counted once.
            usage.cached_tokens += output.num_cached_tokens
            self._formatter.cached_tokens = usage.cached_tokens
        if tokens := len(output.token_ids):
            usage.generated_tokens += tokens
            self._counts.add(item.index, tokens, now)
        size = _size(output)
        self._size += size
        # The last record of a stream may repeat every token.
        is_large = (size if output.finish_reason is None else self._size) > _LARGE
        delta = self._delta(item, is_large=is_large)
        if delta.finish_reason is not None:
            usage.finish_reasons.append(delta.finish_reason.value)
            usage.longest_sequence = max(usage.longest_sequence, self._counts.of_sequence[item.index])
            if delta.finish_reason is FinishReason.STOP_SEQUENCE:
                self._generation.abort(item.index)
        if self._on_complete is not None:
            self._text.append(delta.text)
        if is_large and not self._formatter.waits:
            data = self._run_beside(self._formatter.feed, delta)
        else:
            data = self._formatter.feed(delta)
        return data if self._rewriter is None else self._rewritten(data)

    def _delta(self, item: SequenceOutput, *, is_large: bool) -> TextDelta:
        text = self._texts[item.index]
        if self._continued is not None and isinstance(text, SequenceText):
            if self.usage.continuation is not None:
                return text.interrupt()
            self._continued.generated.extend(item.output.token_ids)
        return self._run_beside(text.feed, item.output) if is_large else text.feed(item.output)

    def _note_cut(self, option: str) -> None:
        """A time limit has ended the text: only the last deltas are still to come."""
        self._formatter.truncated = self.usage.truncated = option
        if self._continued is not None:
            token = self._runner(len(self._continued.generated))(self._continued.seal, self._continued.generated)
            self._formatter.continuation = self.usage.continuation = token

    def _rewritten(self, data: bytes) -> bytes:
        return data if self._rewriter is None else self._rewriter.rewrite(data, streams=self.streams)

    def _close_formatter(self) -> None:
        self._formatter.close()
        if self._rewriter is not None:
            self._rewriter.close()

    def _note_last_token(self) -> None:
        """Embeddings and scores have no tokens: they have arrived at once."""
        usage, last = self.usage, self._counts.last_time
        usage.last_token_time = usage.first_token_time if last is None else last - usage.started

    def _note_meter(self) -> None:
        if (meter := self._generation.meter) is not None:
            self.usage.engine_time, self.usage.kv_block_time = meter.engine_time, meter.kv_block_time

    def _told(self, error: Exception) -> LMIError:
        if isinstance(error, InvalidRequest):
            return error.with_alias(self._alias)
        return error if isinstance(error, LMIError) else _unforeseen(error)

    def _runner(self, size: int) -> RunBeside:
        """Return the runner for an output or a whole answer of `size` tokens: large ones run off the event loop."""
        return self._run_beside if size > _LARGE else at_once

    def _runner_of_formatter(self, size: int) -> RunBeside:
        return at_once if self._formatter.waits else self._runner(size)


def _in_turns(batch: Iterable[SequenceOutput]) -> Iterator[SequenceOutput]:
    """Give way between outputs: a request with many sequences, or whose client has not read for long, has thousands."""
    for number, item in enumerate(batch, 1):
        yield item
        if not number % _AT_ONCE:
            give_way()


def _tell(reader: Listener, output: SequenceOutput | None) -> None:
    if output is None or output.output.finish_reason is not None or _size(output.output) > _LARGE:
        reader.resume()
    else:
        reader.advance()


def _size(output: TokenOutput) -> int:
    """The number of tokens in an output, including prompt tokens and alternatives. A vector counts as some tokens."""
    size = len(output.token_ids)
    if output.top_logprobs:
        size *= 1 + len(output.top_logprobs[-1] or ())
    if output.embedding:
        size += len(output.embedding) // _BYTES_PER_TOKEN
    if output.prompt_logprobs:
        top = output.prompt_top_logprobs
        size += len(output.prompt_logprobs) * (1 + len((top[-1] if top else None) or ()))
    return size


def _unforeseen(error: Exception) -> RequestFailed:
    """Log a bug of ours or of a plug-in formatter. The client still gets a well-formed error."""
    logger.exception("internal error", exc_info=error)
    return RequestFailed(f"internal error ({type(error).__name__}); the server's log says more", code="internal_error")


_BYTES_PER_TOKEN = 128
"""Bytes of a vector, whose numbers take about as long to write as JSON as a token."""

_AT_ONCE = 64
"""Outputs after which other requests get a turn, as in the engine's client."""

_LARGE = 1024
"""Tokens that take a few milliseconds to format. More would delay other clients, so they run off the event loop."""
