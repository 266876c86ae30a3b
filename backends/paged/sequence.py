"""A sequence as the scheduler sees it, and a chunk of one that is computed in a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmi_handlers.core.meter import Meter


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt with its generated tokens, and the blocks of the KV cache that belong to it.

    `token_ids` holds the prompt, of `prompt_len` tokens, and the generated ids. It begins with the prompt and with what
    was generated before, or by default with the prompt only. The keys and values of the first `num_computed` of them are
    cached. `max_len` is the maximum length of `token_ids`. `blocks` is the block table: token i is in block
    `blocks[i // block_size]`, at position `i % block_size`.

    `first_logit` is the first position whose logits are needed: 0 if the prompt's log probabilities are wanted,
    otherwise the last known token's. `draft` are tokens that are likely to follow; they are computed in the same step
    if there is room. `cache_key` distinguishes sequences that must not share blocks although their tokens are equal,
    such as those of different adapters. `model_kwargs` are additional arguments for the model's first forward pass.
    `adapter` is what the runner adds to the model's weights, None for the model itself.
    """

    request_id: str
    token_ids: list[int]
    max_len: int
    first_logit: int = -1
    cache_key: bytes = b""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    adapter: Any | None = None
    prompt_len: int = -1
    num_computed: int = field(init=False, default=0)
    num_cached_tokens: int | None = field(init=False, default=None)
    """Tokens of the prompt that were in the cache when the sequence first started. None before that."""
    blocks: list[int] = field(init=False, default_factory=list)
    digests: list[bytes] = field(init=False, default_factory=list)
    """Digest of each full block's tokens and all before them."""
    draft: list[int] = field(init=False, default_factory=list)
    meter: Meter = field(default_factory=Meter)
    """That of the request, which other sequences may also have."""
    held_since: float = field(init=False, default=0.0)
    """The monotonic time from which on the blocks are not yet in `meter`."""
    failed: bool = field(init=False, default=False)
    """The model computed something unusable, which may be in its blocks."""

    def __post_init__(self) -> None:
        if self.prompt_len < 0:
            self.prompt_len = len(self.token_ids)
        if self.first_logit < 0:
            self.first_logit = len(self.token_ids) - 1

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.first_logit = len(self.token_ids)
        self.token_ids.append(token_id)

    def meter_blocks(self) -> None:
        """Add the time for which the blocks have been held. Called before their number changes, and after each step."""
        now = time.monotonic()
        self.meter.kv_block_time = (self.meter.kv_block_time or 0.0) + len(self.blocks) * (now - self.held_since)
        self.held_since = now

    @property
    def num_left(self) -> int:
        """Number of known tokens that are not computed yet. It is 1 while tokens are generated one by one."""
        return len(self.token_ids) - self.num_computed


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Consecutive tokens of a sequence, to be computed in this step. The tokens before `start` are computed already.

    The last `num_draft` of `token_ids` are a draft of what may follow the known tokens. Logits are needed for the last
    `num_logits` positions; in the middle of a long prompt that is none.
    """

    sequence: Sequence
    start: int
    token_ids: list[int]
    num_logits: int
    num_draft: int = 0

    @property
    def stop(self) -> int:
        """Position after the last token: the length of the sequence as the model sees it in this step."""
        return self.start + len(self.token_ids)

    @property
    def draft(self) -> list[int]:
        """The last `num_draft` tokens."""
        return self.token_ids[len(self.token_ids) - self.num_draft :]

    @property
    def samples(self) -> bool:
        """True if the chunk contains the last known token, whose logits give the next one."""
        return self.stop - self.num_draft == len(self.sequence.token_ids)
