"""A sequence while it is generated: how its tokens are chosen, when it ends, and what is sent."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from array_api_compat import array_namespace, device

from backends.paged.prompt_lookup import PromptLookup
from backends.paged.sequence import Sequence, SequenceChunk
from backends.sampling.sampler import Sampled, SamplerState, logprobs_and_best
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams

_ROWS = 64
"""Positions of a prompt whose log probabilities are computed at once. More would take much memory for a moment."""


class RunningSequence:
    """A `sequence` with its sampling `state`. The sequence ends with any of `eos_token_ids`, or as `params` say.

    `stop_token_ids` are those of `params`.
    """

    def __init__(
        self,
        sequence: Sequence,
        params: SamplingParams,
        state: SamplerState,
        *,
        eos_token_ids: frozenset[int],
        stop_token_ids: frozenset[int],
        has_images: bool,
        lookup: PromptLookup | None = None,
    ) -> None:
        self.sequence = sequence
        self.params = params
        self.state = state
        self._eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_token_ids = stop_token_ids
        self._has_images = has_images
        self.lookup = lookup
        self._sent = False
        self._prompt_logprobs: list[float | None] = [None]
        self._prompt_top_logprobs: list[list[tuple[int, float]] | None] = [None]

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason why the sequence ends with its last token, or None if it continues."""
        last = self.sequence.token_ids[-1]
        if last in self._eos_token_ids:
            return FinishReason.EOS_TOKEN
        if last in self._stop_token_ids:
            return FinishReason.STOP_SEQUENCE
        if self.state.grammar is not None and self.state.grammar.ended:
            return FinishReason.EOS_TOKEN  # the grammar allows nothing more
        return FinishReason.LENGTH if len(self.sequence.token_ids) >= self.sequence.max_len else None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True until the prompt's log probabilities have been sent, if they are wanted."""
        return self.params.prompt_logprobs is not None and not self._sent

    def collect_prompt_logprobs(self, chunk: SequenceChunk, logits: Any) -> None:
        """Take the prompt's log probabilities from a chunk's `logits`, `[num_logits, vocabulary]`.

        Each position gives the log probability of the prompt token that follows it. A prompt may be computed again from
        its beginning.
        """
        first = chunk.stop - chunk.num_logits
        following = self.sequence.token_ids[first + 1 : min(chunk.stop + 1, self.sequence.prompt_len)]
        xp = array_namespace(logits)
        del self._prompt_logprobs[first + 1 :], self._prompt_top_logprobs[first + 1 :]
        for start in range(0, len(following), _ROWS):
            tokens = following[start : start + _ROWS]
            logprobs, best = logprobs_and_best(
                xp.astype(logits[start : start + len(tokens)], xp.float32, copy=False),
                xp.asarray(tokens, dtype=xp.int64, device=device(logits)),
                [self.params.prompt_logprobs or 0] * len(tokens),
            )
            self._prompt_logprobs += logprobs
            self._prompt_top_logprobs += best

    def draft(self) -> list[int]:
        """Return tokens that may come next, without any that would end the sequence."""
        if self.lookup is None:
            return []
        draft = self.lookup.draft(self.sequence.token_ids)
        eos, stop = self._eos_token_ids, self._stop_token_ids
        return list(takewhile(lambda token: token not in eos and token not in stop, draft))

    def output(self, sampled: list[Sampled], finish_reason: FinishReason | None) -> TokenOutput:
        """Return the message about tokens that have been appended."""
        first, self._sent = not self._sent, True
        with_prompt = first and self.params.prompt_logprobs is not None
        return TokenOutput(
            request_id=self.sequence.request_id,
            token_ids=[choice.token_id for choice in sampled],
            logprobs=None if self.params.logprobs is None else [choice.logprob or 0.0 for choice in sampled],
            top_logprobs=None if not self.params.logprobs else [choice.top or [] for choice in sampled],
            prompt_logprobs=self._prompt_logprobs if with_prompt else None,
            prompt_top_logprobs=self._prompt_top_logprobs if with_prompt and self.params.prompt_logprobs else None,
            finish_reason=finish_reason,
            num_prompt_tokens=self.sequence.prompt_len if first and self._has_images else None,
            num_cached_tokens=self.sequence.num_cached_tokens if first else None,
        )
