"""Beam search on any engine: each step requests one token for every live beam.

The engine needs no support for it. A step submits the live beams as prompts and asks for the most probable next tokens.
It costs one prefill of these prompts: cheap if the engine caches prefixes, expensive if it does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

import msgspec

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    EngineDead,
    EngineNotReady,
    LMIError,
    QueueFull,
    RequestFailed,
    TextDeadline,
)
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.meter import Meter
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import BeamSearchParams, EncodedPrompt, GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.client import EngineClient, InFlightRequest
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.engine.replicas import Replicas
from lmi_handlers.engine.status import EngineState
from lmi_handlers.serving.beam_params import beam_endings, step_params
from lmi_handlers.serving.beam_search import BeamSearch, Continuations
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

_QUEUE_RETRY = 0.1


class BeamGeneration:
    """Beam search with the interface of an `InFlightRequest`. Iterating yields one list: all prompts' complete sequences.

    The `sampling_params.n` best beams of prompt i are the sequences from i * n on, best first. Raises the same errors
    as an `InFlightRequest`. One deadline applies to all steps, and one cutoff, at which the best beams so far are the
    answer. The first step is submitted at once.
    """

    def __init__(
        self,
        client: EngineClient | Replicas,
        prompts: list[EncodedPrompt],
        request: GenerationRequest,
        params: BeamSearchParams,
        *,
        capabilities: Capabilities,
        tokenizer: Tokenizer,
        deadline: Deadline,
    ) -> None:
        """Raises `EngineNotReady`. Call `check_beam_search` first."""
        self._client = client
        self._prompts = prompts
        self._request = request
        self._step_params = step_params(request.sampling_params, params, tokenizer)
        self.deadline = deadline
        self.truncated: str | None = None
        self.shared = self.joined = False  # no request joins a search
        self.paid = None
        self.silent_at = math.inf
        """Not heeded: nothing is yielded before the end."""
        rules = TextRules(tokenizer, request.sampling_params)
        self._searches = [
            begin_search(prompt.token_ids, request.sampling_params, params, capabilities.max_model_len, rules)
            for prompt in prompts
        ]
        self._first: list[TokenOutput] = []  # one per prompt, with the prompt's logprobs
        self._queue_time = 0.0
        self._meter: Meter | None = None
        self._step = self._submit(self._step_params)

    def __enter__(self) -> BeamGeneration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[SequenceOutput]]:
        first = self._outputs()
        self._first = [item.output for item in first]
        self._queue_time = max(item.queue_time for item in first)
        self._advance(first)
        later_params = msgspec.structs.replace(self._step_params, prompt_logprobs=None)
        try:
            while any(search.running for search in self._searches):
                self._advance(self._next_outputs(later_params))
        except TextDeadline as deadline:
            self.truncated = deadline.option
            for search in self._searches:
                search.cut()
        yield list(self._answer())

    @property
    def meter(self) -> Meter | None:
        """The usage of the engine by all steps, None before the first output."""
        return self._meter

    @property
    def failure(self) -> LMIError | None:
        """The error that ended the current step from outside, if any."""
        return self._step.failure

    def close(self) -> None:
        """Abort the current step."""
        self._step.close()

    def abort(self, index: int) -> None:
        """Does nothing: sequences are only yielded after the engine has finished."""

    def _submit(self, sampling_params: SamplingParams) -> InFlightRequest:
        """Submit every live beam as a prompt."""
        beams = [
            msgspec.structs.replace(prompt, token_ids=[*prompt.token_ids, *beam.token_ids])
            for prompt, search in zip(self._prompts, self._searches, strict=True)
            for beam in search.running
        ]
        step = msgspec.structs.replace(self._request, sampling_params=sampling_params)
        return self._client.submit(beams, step, self.deadline)

    def _outputs(self) -> list[SequenceOutput]:
        """The next token of each beam in the current step, in beam order."""
        with self._step as step:
            try:
                items = [item for batch in step for item in batch if item.output.token_ids]
            finally:
                if (used := step.meter) is not None:
                    self._meter = used if self._meter is None else self._meter.plus(used)
        if step.truncated is not None:
            raise TextDeadline(step.truncated)
        if len(items) != sum(len(search.running) for search in self._searches):
            raise RequestFailed("the engine did not return one token per beam")
        return sorted(items, key=lambda item: item.index)

    def _next_outputs(self, sampling_params: SamplingParams) -> list[SequenceOutput]:
        """Run a later step. A full queue or a stalled engine is retried: it must not fail a request already begun."""
        while True:
            # A step can finish before the engine client has checked the connection and deadline even once.
            self.deadline.check(time.monotonic())
            try:
                self._step = self._submit(sampling_params)
                return self._outputs()
            except QueueFull:
                time.sleep(_QUEUE_RETRY)
            except EngineNotReady as error:
                if self._client.state is EngineState.STALLED:
                    time.sleep(_QUEUE_RETRY)
                    continue
                raise EngineDead("the engine process ended while it worked on this request") from error

    def _advance(self, items: list[SequenceOutput]) -> None:
        """Pass each search the outputs of its beams."""
        outputs = iter(items)
        for search in self._searches:
            if search.running:
                search.advance([self._continuations(next(outputs).output) for _ in search.running])
                give_way()

    def _continuations(self, output: TokenOutput) -> Continuations:
        top = output.top_logprobs[0] if output.top_logprobs else []
        if len(top) < (self._step_params.logprobs or 0):
            raise RequestFailed(
                f"the engine returned {len(top)} continuations of a beam, {self._step_params.logprobs} were requested"
            )
        return top

    def _answer(self) -> Iterator[SequenceOutput]:
        params = self._request.sampling_params
        for position, search in enumerate(self._searches):
            for rank, beam in enumerate(search.finished[: params.n]):
                output = TokenOutput(
                    request_id=self._request.request_id,
                    token_ids=list(beam.token_ids),
                    logprobs=None if params.logprobs is None else list(beam.logprobs),
                    top_logprobs=[list(top[: params.logprobs]) for top in beam.top_logprobs]
                    if params.logprobs
                    else None,
                    prompt_logprobs=self._first[position].prompt_logprobs,
                    prompt_top_logprobs=self._first[position].prompt_top_logprobs,
                    finish_reason=beam.finish_reason,
                    num_cached_tokens=self._first[position].num_cached_tokens,
                )
                yield SequenceOutput(0, position * params.n + rank, output, self._queue_time)


def begin_search(
    prompt: list[int], asked: SamplingParams, params: BeamSearchParams, max_model_len: int, rules: TextRules
) -> BeamSearch:
    """The search for the answers to one prompt, given as token ids."""
    room = max_model_len - len(prompt)
    return BeamSearch(
        params,
        max_tokens=room if asked.max_tokens is None else min(asked.max_tokens, room),
        min_tokens=asked.min_tokens,
        endings=beam_endings(asked, rules.tokenizer),
        contains_stop=StopSearch(rules, prompt) if asked.stop else None,
    )


class StopSearch:
    """Tells whether the text of a beam contains a stop string. Only its last token is read, whatever the beam's length.

    Call it with beams of one token, then with those of two and so on. Each of them continues a beam without a stop string.
    """

    def __init__(self, rules: TextRules, prompt: Sequence[int]) -> None:
        self._begun: dict[tuple[int, ...], SequenceText] = {}
        self._texts: dict[tuple[int, ...], SequenceText] = {(): SequenceText(rules, prompt)}
        self._length = 0

    def __call__(self, token_ids: Sequence[int]) -> bool:
        """Tell whether there is a stop string in the text of these tokens."""
        if len(token_ids) > self._length:
            self._begun, self._texts, self._length = self._texts, {}, len(token_ids)
        *begin, last = token_ids
        text = self._begun[tuple(begin)].fork()
        self._texts[tuple(token_ids)] = text
        return text.feed(TokenOutput(request_id="", token_ids=[last])).finish_reason is not None
