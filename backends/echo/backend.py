"""`echo`: a deterministic engine without a model, for tests, benchmarks and developing clients.

It repeats the prompt until `max_tokens`. Without `ignore_eos` it ends the sequence after one repetition. At the cap of a
`thinking_token_budget` it inserts the end of the thought.
`option.echo_tokens_per_second` limits the speed of each sequence.

With `option.echo_faults=true` these words in a prompt cause a fault at the given token:

    REFUSE@1  the engine refuses the request
    RAISE@3   the request fails at its third token
    DIE@3     the process is killed, as the kernel's out-of-memory killer would do
    CRASH@3   `step` raises, which ends the engine for every request
    SLEEP@3   one step sleeps for `option.echo_load_seconds` seconds
    WORK@3    one step computes for `option.echo_load_seconds` seconds
    HANG@3    the sequence never produces another token and never ends
    MUTE@3    no later step produces a token for any sequence
    GRIP@3    native code takes the GIL and never releases it
    ADD@1     adding the request takes `option.echo_load_seconds` seconds
    ABORT@3   aborting the request from then on takes `option.echo_load_seconds` seconds

With `option.task=text-embedding` and `text-ranking`, it answers with the vectors and scores of `backends.echo.pooled`.

`option.echo_fault` makes loading slow (`slow_load`, by `option.echo_load_seconds`), fail (`raise_in_load`), run out of
memory (`out_of_memory_in_load`) or exit the process (`exit_in_load`).
"""

from __future__ import annotations

import ctypes
import heapq
import math
import os
import re
import signal
import time
from collections.abc import Callable

from backends.base import Backend, ModelFiles
from backends.echo import DECLARATION
from backends.echo.options import DEFAULT_BATCH_SIZE, EchoOptions
from backends.echo.pooled import EMBEDDING_SIZE, EMBEDDING_TASKS, RANKING_TASKS, pooled
from backends.sampling.thinking import ThinkingCap
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError, InvalidRequest, LoadFailed
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.pooling_params import PoolingTask
from lmi_handlers.core.request import TokenRequest

MAX_MODEL_LEN = 1 << 20
_FAULT = re.compile(rb"\b(REFUSE|RAISE|DIE|CRASH|SLEEP|WORK|HANG|MUTE|GRIP|ADD|ABORT)@(\d+)\b")
_PAUSE = 0.001
_LOGPROB = -0.5


def _compute(seconds: float) -> None:
    """Keep the CPU busy for `seconds` without blocking other Python threads, like native code that releases the GIL."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class _Sequence:
    """A prompt that is being repeated."""

    def __init__(
        self, request: TokenRequest, max_tokens: int, fault: tuple[str, int] | None, thinking: ThinkingCap | None
    ) -> None:
        self.request = request
        self.max_tokens = max_tokens
        self.fault = fault
        self.thinking = thinking
        self.repeated = 0
        self.produced = 0
        self.started = time.monotonic()
        for token_id in request.generated:
            self.record(token_id)

    @property
    def forced(self) -> int | None:
        """The token that must come next, or None."""
        return None if self.thinking is None else self.thinking.forced

    def record(self, token_id: int) -> None:
        """Take account of the next token."""
        if self.forced is None:
            self.repeated += 1
        self.produced += 1
        if self.thinking is not None:
            self.thinking.record(token_id)


class EchoBackend(Backend):
    """Repeats prompts. Each step adds at most one token per sequence, limited to `tokens_per_second`."""

    def __init__(
        self,
        model: ModelFiles,
        *,
        max_model_len: int,
        max_num_seqs: int = DEFAULT_BATCH_SIZE,
        tokens_per_second: float,
        faults: bool,
        sleep_seconds: float,
        pooling_tasks: tuple[PoolingTask, ...] = (),
    ) -> None:
        self._eos_token_id = model.eos_token_ids[0] if model.eos_token_ids else None
        self._thinking = model.thinking
        self._capabilities = Capabilities(
            backend="echo",
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            vocab_size=model.vocab_size,
            max_logprobs=20,
            unsupported=tuple(DECLARATION.unsupported),
            device="cpu",
            takes_cache_salt=True,
            continues=True,
            pooling_tasks=pooling_tasks,
            embedding_size=EMBEDDING_SIZE if "embed" in pooling_tasks else None,
            labels=("LABEL_0",) if "classify" in pooling_tasks else (),
        )
        self._tokens_per_second = tokens_per_second
        self._faults = faults
        self._sleep_seconds = sleep_seconds
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: list[tuple[float, str]] = []  # if paced: a heap of when each has its next token, and its id
        self._mute = False

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> EchoBackend:
        """Simulate loading, with the delay and result that the options ask for."""
        options = properties.options_of(EchoOptions)
        fault = options.echo_fault
        if fault == "exit_in_load":
            os._exit(3)
        if fault == "raise_in_load":
            raise ConfigError("option.echo_fault=raise_in_load: the echo backend fails to load, as requested")
        if fault == "out_of_memory_in_load":
            raise LoadFailed(f"option.echo_fault={fault}: the echo backend is out of memory, as requested")
        if fault == "slow_load":
            report("pretending")
            time.sleep(options.echo_load_seconds)
        return cls(
            model,
            max_model_len=properties.max_model_len or MAX_MODEL_LEN,
            max_num_seqs=properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE,
            tokens_per_second=options.echo_tokens_per_second or math.inf,
            faults=options.echo_faults,
            sleep_seconds=options.echo_load_seconds,
            pooling_tasks=EMBEDDING_TASKS if properties.embeds else RANKING_TASKS if properties.ranks else (),
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Start repeating the prompt. Raises `InvalidRequest` if the prompt asks for it."""
        prompt = request.prompt.token_ids
        room = self._capabilities.max_model_len - len(prompt)
        max_tokens = min(request.sampling_params.max_tokens or room, room)
        fault = self._fault_in(prompt)
        if fault is not None and fault[0] == "REFUSE":
            raise InvalidRequest("the echo backend refused the request, as the prompt asked")
        if fault is not None and fault[0] == "ADD":
            time.sleep(self._sleep_seconds)
        budget = request.sampling_params.thinking_token_budget
        thinking = None
        if self._thinking is not None and budget is not None:
            thinking = ThinkingCap(self._thinking, budget, prompt)
        self._sequences[request.request_id] = sequence = _Sequence(request, max_tokens, fault, thinking)
        self._await_turn(sequence)

    def abort(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        fault = None if sequence is None else sequence.fault
        if fault is not None and fault[0] == "ABORT" and sequence is not None and sequence.produced + 1 >= fault[1]:
            time.sleep(self._sleep_seconds)

    def step(self) -> list[TokenOutput]:
        """Return one token for every sequence that is due."""
        if self._mute:
            time.sleep(_PAUSE)
            return []
        outputs: list[TokenOutput] = []
        for sequence in self._due():
            output = self._advance(sequence)
            if output is None:
                continue
            outputs.append(output)
            if output.finish_reason is not None:
                del self._sequences[output.request_id]
            else:
                self._await_turn(sequence)
        if not outputs:
            time.sleep(_PAUSE)
        return outputs

    def _await_turn(self, sequence: _Sequence) -> None:
        if self._tokens_per_second < math.inf:
            due = sequence.started + (sequence.produced - len(sequence.request.generated)) / self._tokens_per_second
            heapq.heappush(self._waiting, (due, sequence.request.request_id))

    def _due(self) -> list[_Sequence]:
        """Return the sequences whose turn it is. Costs nothing for the others, so that the server is what is measured."""
        if self._tokens_per_second == math.inf:
            return list(self._sequences.values())
        due: list[_Sequence] = []
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, request_id = heapq.heappop(self._waiting)
            if request_id in self._sequences:  # otherwise it was aborted
                due.append(self._sequences[request_id])
        return due

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        """Return the sequence's next output, or None if it hangs."""
        request = sequence.request
        if sequence.fault is not None and sequence.produced + 1 >= sequence.fault[1]:
            if sequence.fault[0] == "RAISE":
                return TokenOutput(
                    request_id=request.request_id,
                    token_ids=[],
                    finish_reason=FinishReason.ERROR,
                    error=f"the echo backend failed at token {sequence.produced + 1}, as the prompt asked",
                )
            if self._hangs(sequence, sequence.fault[0]):
                return None
        params, prompt = request.sampling_params, request.prompt.token_ids
        if request.pooling_params is not None:
            return TokenOutput(
                request_id=request.request_id,
                token_ids=[],
                finish_reason=FinishReason.EOS_TOKEN,
                embedding=pooled(request.prompt, request.pooling_params),
            )
        token_id, finish_reason = sequence.forced, None
        if token_id is None:
            token_id = prompt[sequence.repeated % len(prompt)]
            is_repeated = sequence.repeated == len(prompt) and sequence.produced >= params.min_tokens
            if is_repeated and not params.ignore_eos and self._eos_token_id is not None:
                token_id, finish_reason = self._eos_token_id, FinishReason.EOS_TOKEN
        sequence.record(token_id)
        if finish_reason is None and token_id in params.stop_token_ids and sequence.produced >= params.min_tokens:
            finish_reason = FinishReason.STOP_SEQUENCE
        elif finish_reason is None and sequence.produced >= sequence.max_tokens:
            finish_reason = FinishReason.LENGTH
        top = params.logprobs
        prompt_logprobs, prompt_top_logprobs = self._prompt_logprobs(sequence)
        return TokenOutput(
            request_id=request.request_id,
            token_ids=[token_id],
            logprobs=None if top is None else [_LOGPROB],
            top_logprobs=None if not top else [self._top(token_id, top)],
            prompt_logprobs=prompt_logprobs,
            prompt_top_logprobs=prompt_top_logprobs,
            finish_reason=finish_reason,
        )

    def _hangs(self, sequence: _Sequence, fault: str) -> bool:
        """Do what the prompt asked for. Returns True if the sequence gets no more tokens."""
        match fault:
            case "DIE":
                os.kill(os.getpid(), signal.SIGKILL)
            case "CRASH":
                raise RuntimeError("the echo backend crashed, as the prompt asked")
            case "MUTE":
                self._mute = True
            case "GRIP":
                ctypes.PyDLL(None).pause()  # never returns, because this process handles no signals
            case "SLEEP" | "WORK":
                sequence.fault = None
                (time.sleep if fault == "SLEEP" else _compute)(self._sleep_seconds)
        return fault in ("HANG", "MUTE")

    def _top(self, token_id: int, count: int) -> list[tuple[int, float]]:
        others = [(token_id + step) % self._capabilities.vocab_size for step in range(1, count)]
        return [(token_id, _LOGPROB), *((other, _LOGPROB - rank) for rank, other in enumerate(others, 1))]

    def _prompt_logprobs(
        self, sequence: _Sequence
    ) -> tuple[list[float | None] | None, list[list[tuple[int, float]] | None] | None]:
        count = sequence.request.sampling_params.prompt_logprobs
        if sequence.produced != len(sequence.request.generated) + 1 or count is None:
            return None, None
        _, *following = sequence.request.prompt.token_ids
        top = [None, *(self._top(token_id, count) for token_id in following)] if count else None
        return [None, *[_LOGPROB] * len(following)], top

    def _fault_in(self, prompt: list[int]) -> tuple[str, int] | None:
        if not self._faults:
            return None
        # Works only with the byte-level tokenizer, whose ids are the bytes of the prompt.
        match = _FAULT.search(bytes(token_id for token_id in prompt if token_id < 256))
        return (match[1].decode(), int(match[2])) if match else None
