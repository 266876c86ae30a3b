"""Drives a loaded backend as the engine loop does, and checks each output as it arrives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest

from backends.base import Backend
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

MAX_MODEL_LEN = 96
MAX_NUM_SEQS = 8
PROMPTS = [
    list(text) for text in (b"Hello", b"The capital of France is", b"1, 2, 3, 4,", b"a", b"def f(x):\n    return")
]
"""Token ids of the byte-level tokenizer. To a real model they look strange, but they are in its vocabulary."""


class Driver:
    """A loaded backend and the sequences that the current check has started.

    `outputs` has the outputs of each of them, in order. `patience` is how many seconds the backend may take for its
    next output.
    """

    def __init__(self, backend: Backend, eos_token_ids: tuple[int, ...], patience: float) -> None:
        self.backend = backend
        self.eos_token_ids = eos_token_ids
        self.outputs: dict[str, list[TokenOutput]] = {}
        self.running: set[str] = set()
        self._patience = patience
        self._forgotten: set[str] = set()
        self._most_cached: dict[str, int] = {}
        self._numbers = itertools.count()
        self._greedy: dict[int, list[int]] = {}

    def reset(self) -> None:
        """Forget all sequences, so that a check that failed and left some running does not affect the next one."""
        for request_id in self.running:
            self.backend.abort(request_id)
        self._forgotten |= self.outputs.keys()
        self.running.clear()
        self.outputs.clear()

    def add(self, prompt: list[int], *, generated: Sequence[int] = (), **params: Any) -> str:
        """Start a sequence and return its id. It is greedy and ignores the end of sequence, unless `params` differ.

        It goes on after the tokens in `generated`. Skips the check if the backend does not support one of `params`.
        """
        sampling_params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params)
        for name in params.keys() & set(self.backend.capabilities.unsupported):
            if getattr(sampling_params, name) != getattr(SamplingParams(), name):
                pytest.skip(f"the backend does not support {name}")
        request_id = f"r{next(self._numbers)}"
        self.backend.add_request(
            TokenRequest(
                request_id=request_id,
                prompt=EncodedPrompt(list(prompt)),
                sampling_params=sampling_params,
                generated=tuple(generated),
            )
        )
        self.running.add(request_id)
        self.outputs[request_id] = []
        self._most_cached[request_id] = len(prompt) if generated else len(prompt) - 1
        return request_id

    def abort(self, request_id: str) -> None:
        """Abort a sequence, whether or not it is running."""
        self.backend.abort(request_id)
        self.running.discard(request_id)

    def step(self) -> list[TokenOutput]:
        """Step once. Checks that each output belongs to a running sequence and that its fields are consistent."""
        outputs = [output for output in self.backend.step() if output.request_id not in self._forgotten]
        for output in outputs:
            self._take(output)
        return outputs

    def finish(self, *request_ids: str) -> list[list[TokenOutput]]:
        """Step until all of `request_ids` have ended, and return all outputs of each. Other sequences go on."""
        last = time.monotonic()
        while not self.running.isdisjoint(request_ids):
            if self.step():
                last = time.monotonic()
            assert time.monotonic() < last + self._patience, (
                f"no output for {self._patience} s, although sequences are running: each must end with an output "
                f"that has a finish reason, or add_request must raise InvalidRequest"
            )
        return [self.outputs[request_id] for request_id in request_ids]

    def generate(self, prompt: list[int], **params: Any) -> list[TokenOutput]:
        """Run one sequence to its end and return its outputs."""
        return self.finish(self.add(prompt, **params))[0]

    def greedy(self, number: int, max_tokens: int) -> list[int]:
        """Return what the backend generates for `PROMPTS[number]` when nothing else runs, up to 12 tokens."""
        if number not in self._greedy:
            self._greedy[number] = tokens(self.generate(PROMPTS[number], max_tokens=12))
        return self._greedy[number][:max_tokens]

    def _take(self, output: TokenOutput) -> None:
        request_id = output.request_id
        assert request_id in self.outputs, f"step returned an output for {request_id!r}, which was never added"
        earlier = self.outputs[request_id]
        ended = earlier and earlier[-1].finish_reason is not None
        assert not ended, "step returned another output for a sequence after the one with its finish reason"
        assert request_id in self.running, "step returned an output for a sequence that had been aborted"
        assert output.error is None, f"the sequence failed: {output.error}"
        assert not earlier or (output.prompt_logprobs, output.prompt_top_logprobs) == (None, None), (
            "only the first output of a sequence may have prompt_logprobs and prompt_top_logprobs"
        )
        cached = output.num_cached_tokens
        assert not earlier or cached is None, "only the first output of a sequence may have num_cached_tokens"
        assert cached is None or 0 <= cached <= self._most_cached[request_id], (
            f"num_cached_tokens is {cached}, but must be at most {self._most_cached[request_id]}: it counts tokens of the "
            "prompt, and the last one is always computed unless others follow it"
        )
        earlier.append(output)
        assert sum(len(each.token_ids) for each in earlier) < MAX_MODEL_LEN, (
            "the sequence has more tokens than option.max_model_len allows, or token_ids has earlier tokens again"
        )
        if output.finish_reason is not None:
            self.running.remove(request_id)


def tokens(outputs: list[TokenOutput]) -> list[int]:
    """Return the token ids of all outputs."""
    return [token_id for output in outputs for token_id in output.token_ids]
