"""A sequence, and a chunk of one that is computed in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.sampling.sampler import SamplerState, Watermark
from backends.transformers.images import ImageInputs
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import TokenRequest


class Sequence:
    """A prompt with its generated tokens.

    `token_ids` holds the prompt and generated ids. The keys and values of the first `num_computed` of them are cached.
    `max_len` is the maximum length of `token_ids`: prompt plus `max_tokens`, but at most the model's maximum length.
    `failed` means that the model computed something unusable, which is then in the cache as well.
    `model_kwargs` are additional arguments for the model's first forward pass: the images.
    """

    def __init__(
        self,
        request: TokenRequest,
        *,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        bad_words: list[list[int]] | None = None,
        watermark: Watermark | None = None,
        images: ImageInputs | None = None,
    ) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.params = params
        self.token_ids = list(request.prompt.token_ids if images is None else images.token_ids)
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
            params, self.token_ids, eos_token_ids | self.stop_token_ids, bad_words=bad_words, watermark=watermark
        )
        self.prompt_logprobs: list[float | None] | None = None if params.prompt_logprobs is None else [None]
        self.prompt_top_logprobs: list[list[tuple[int, float]] | None] | None = (
            [None] if params.prompt_logprobs else None
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence ends with its last token, or None if it continues."""
        last = self.token_ids[-1]
        if last in self.eos_token_ids:
            return FinishReason.EOS_TOKEN
        if last in self.stop_token_ids:
            return FinishReason.STOP_SEQUENCE
        if self.sampler.ended:
            return FinishReason.EOS_TOKEN
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_len else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start:stop` of a sequence, to be computed in this step. The tokens before `start` are computed already.

    Logits are needed for positions `first_logit:stop`. In the middle of a long prompt this range is empty.
    """

    sequence: Sequence
    start: int
    stop: int
    first_logit: int

    @property
    def token_ids(self) -> list[int]:
        """The input ids for the model."""
        return self.sequence.token_ids[self.start : self.stop]

    @property
    def num_logits(self) -> int:
        """Number of rows of logits for this chunk."""
        return self.stop - self.first_logit

    @property
    def decodes(self) -> bool:
        """True for a single token that follows others. Usually generated, sometimes the last one of a prompt."""
        return 0 < self.start == self.stop - 1

    @property
    def samples(self) -> bool:
        """True if the chunk reaches the last known token, so that its last logits give the next token."""
        return self.stop == len(self.sequence.token_ids)


def next_chunk(sequence: Sequence, stop: int) -> Chunk:
    """Return the chunk from the last computed token of `sequence` up to `stop`."""
    if sequence.prompt_logprobs is not None and sequence.num_computed < sequence.prompt_len:
        first_logit = sequence.num_computed
    elif stop == len(sequence.token_ids):
        first_logit = stop - 1
    else:
        first_logit = stop
    return Chunk(sequence, sequence.num_computed, stop, first_logit)
