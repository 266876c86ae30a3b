"""One sequence on its way through the engine, and the piece of it that one step computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import WatermarkLogitsProcessor

from backends.transformers.images import ImageInputs
from backends.transformers.sampler import SamplerState
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import TokenRequest


class Sequence:
    """Prompt and generated ids in `token_ids`, of which the first `num_computed` have their keys and values cached.

    `max_len` bounds `token_ids`: the prompt and `max_tokens`, or the model's length where that is less. `failed` says
    that the model computed something unusable for it, which then also lies in its cache. `model_kwargs` are what the model's
    first forward is to get besides the prompt: its images.
    """

    def __init__(
        self,
        request: TokenRequest,
        *,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        vocab_size: int,
        device: torch.device,
        bad_words: list[list[int]] | None = None,
        watermark: WatermarkLogitsProcessor | None = None,
        images: ImageInputs | None = None,
    ) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.params = params
        self.token_ids = list(request.prompt_token_ids if images is None else images.token_ids)
        self.has_images = images is not None
        self.model_kwargs: Mapping[str, Any] = {} if images is None else images.model_kwargs
        self.prompt_len = len(self.token_ids)
        self.num_computed = 0
        self.failed = False
        self.max_len = max_model_len
        if params.max_tokens is not None:
            self.max_len = min(max_model_len, self.prompt_len + params.max_tokens)
        self.stop_token_ids = frozenset(params.stop_token_ids)
        self.eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self.sampler = SamplerState(
            params,
            self.token_ids,
            eos_token_ids | self.stop_token_ids,
            vocab_size,
            device,
            bad_words=bad_words,
            watermark=watermark,
        )
        self.prompt_logprobs: list[float | None] | None = None if params.prompt_logprobs is None else [None]
        self.prompt_top_logprobs: list[list[tuple[int, float]] | None] | None = (
            [None] if params.prompt_logprobs else None
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence ends with its last token, or None where it goes on."""
        last = self.token_ids[-1]
        if last in self.eos_token_ids:
            return FinishReason.EOS_TOKEN
        if last in self.stop_token_ids:
            return FinishReason.STOP_SEQUENCE
        if self.sampler.grammar is not None and self.sampler.grammar.ended:
            return FinishReason.EOS_TOKEN  # nothing else could follow
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_len else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens `start:stop` of a sequence, to be computed in this step after the `start` tokens before them.

    Logits are wanted for the positions `first_logit:stop`, which is none of them in the midst of a long prompt.
    """

    sequence: Sequence
    start: int
    stop: int
    first_logit: int

    @property
    def token_ids(self) -> list[int]:
        """The ids to feed to the model."""
        return self.sequence.token_ids[self.start : self.stop]

    @property
    def num_logits(self) -> int:
        """How many rows of logits come back for this chunk."""
        return self.stop - self.first_logit

    @property
    def decodes(self) -> bool:
        """True for one token after others: what generates, and now and then the last token of a prompt."""
        return 0 < self.start == self.stop - 1

    @property
    def samples(self) -> bool:
        """True where the chunk reaches the end of what is known, so that its last logits give the next token."""
        return self.stop == len(self.sequence.token_ids)


def next_chunk(sequence: Sequence, stop: int) -> Chunk:
    """Make the chunk that takes `sequence` from what is computed to `stop`."""
    if sequence.prompt_logprobs is not None and sequence.num_computed < sequence.prompt_len:
        first_logit = sequence.num_computed
    elif stop == len(sequence.token_ids):
        first_logit = stop - 1
    else:
        first_logit = stop
    return Chunk(sequence, sequence.num_computed, stop, first_logit)
