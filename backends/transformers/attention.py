"""Attention over a flattened batch: every sequence's new tokens in one row, every sequence's past in the cache.

transformers hands each layer's attention to `rolling_attention` by name. It gets the step's `BatchLayout` as a keyword
that the model passes down, so nothing here is global. Two cases: a token that continues a sequence (decode), computed
for many sequences at once, and a piece of a prompt (prefill), computed by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from backends.transformers.kv_cache import KVCache

ATTENTION_NAME = "lmi_rolling_batch"


class AttentionNotSupported(Exception):
    """The model asks for something that `rolling_attention` does not compute."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Consecutive slots that get one token each: tokens from `first_token` on, slots from `first_slot` on.

    `lengths` counts the cached tokens of each sequence, the new one included.
    """

    first_token: int
    first_slot: int
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """The tokens `start:stop` of the batch are a piece of the prompt in `slot`, after `past` tokens of it."""

    start: int
    stop: int
    slot: int
    past: int


@dataclass(slots=True)
class BatchLayout:
    """Which token of a step belongs where: `slots` and `positions` have an entry for each.

    `windows` collects each layer's sliding window as the layers say it, for whoever wants to check that they do.
    """

    cache: KVCache
    slots: torch.Tensor
    positions: torch.Tensor
    decode: list[DecodeGroup]
    prefill: list[PrefillSegment]
    windows: dict[int, int | None] = field(default_factory=dict)
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)
    _indices: dict[int, torch.Tensor] = field(default_factory=dict)

    def cache_index(self, kv_heads: int, device: torch.device) -> torch.Tensor:
        """Return where in the cache each head of each token goes, `[kv_heads * tokens]`; see `KVCache.write`."""
        index = self._indices.get(kv_heads)
        if index is None or index.device != device:
            heads = torch.arange(kv_heads, device=device)[:, None]
            rows = self.slots.to(device) * kv_heads + heads
            index = (rows * self.cache.num_positions + self.positions.to(device)).flatten()
            self._indices[kv_heads] = index
        return index

    def decode_mask(self, group: DecodeGroup, first: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """Return what to add to the scores of a decode group, `[slots, 1, 1, positions from first]`.

        Every layer with the same window shares it.
        """
        key = group.first_token, window
        mask = self._masks.get(key)
        if mask is None or mask.device != like.device:
            lengths = torch.tensor(group.lengths, device=like.device)[:, None]
            positions = torch.arange(first, max(group.lengths), device=like.device)
            outside = positions >= lengths
            if window is not None:
                outside |= positions < lengths - window
            mask = self._masks[key] = _additive(outside, like)[:, None, None]
        return mask


def rolling_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    rolling_batch: BatchLayout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend each of N tokens to its own sequence. `query` is `[1, heads, N, dim]`; the result `[1, N, heads, dim]`."""
    if rolling_batch is None or attention_mask is not None or position_bias is not None or is_causal is False:
        raise AttentionNotSupported("its attention is not plainly causal")
    layout = rolling_batch
    layer: int = module.layer_idx  # type: ignore[assignment]  # every attention module of the library numbers its layer
    layout.windows[layer] = sliding_window
    cached_keys, cached_values = layout.cache.write(
        layer, key[0], value[0], layout.cache_index(key.shape[1], key.device)
    )
    scoring = _Scoring(scaling, softcap, s_aux)
    parts = [
        _decode(layout, group, query, cached_keys, cached_values, sliding_window, scoring) for group in layout.decode
    ]
    for segment in layout.prefill:
        keys, values = key[:, :, segment.start : segment.stop], value[:, :, segment.start : segment.stop]
        if segment.past > 0:
            stored = slice(0, segment.past + segment.stop - segment.start)
            keys = cached_keys[None, segment.slot, :, stored]
            values = cached_values[None, segment.slot, :, stored]
        parts.append(_prefill(query[:, :, segment.start : segment.stop], keys, values, sliding_window, scoring))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _decode(
    layout: BatchLayout,
    group: DecodeGroup,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int | None,
    scoring: _Scoring,
) -> torch.Tensor:
    """Attend one token of each slot to the slot's past, `[slots, heads, dim]`.

    The query heads that share a key-value head are given to the kernel as so many query positions of it: no key is
    copied, and each is read once for all of them.
    """
    heads, dim, kv_heads, count = query.shape[1], query.shape[3], keys.shape[1], len(group.lengths)
    shortest, longest = min(group.lengths), max(group.lengths)
    first = 0 if window is None else max(0, shortest - window)
    slots, positions = slice(group.first_slot, group.first_slot + count), slice(first, longest)
    tokens = query[0, :, group.first_token : group.first_token + count].transpose(0, 1)
    out = scoring.attend(
        tokens.reshape(count, kv_heads, heads // kv_heads, dim),
        keys[slots, :, positions],
        values[slots, :, positions],
        None if shortest == longest else layout.decode_mask(group, first, window, query),
    )
    return out.reshape(count, heads, -1)


def _prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scoring: _Scoring
) -> torch.Tensor:
    """Attend the last tokens of a sequence, `[1, heads, tokens, dim]`, to all of it: `[tokens, heads, dim]`."""
    count, length = query.shape[2], keys.shape[2]
    first = 0 if window is None else max(0, length - count + 1 - window)
    keys, values = keys[:, :, first:], values[:, :, first:]
    plain = count == length and (window is None or length <= window)
    mask = None
    if scoring.by_hand or not plain:
        at = torch.arange(length - count, length, device=query.device)[:, None]
        positions = torch.arange(first, length, device=query.device)
        outside = positions > at
        if window is not None:
            outside |= positions <= at - window
        mask = _additive(outside, query)
        # A fused kernel that takes both a mask and fewer key heads than query heads does not exist everywhere.
        groups = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    return scoring.attend(query, keys, values, mask, causal=mask is None)[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """How a layer turns queries and keys into weights: the scale, Gemma's soft cap, gpt-oss's sink of each head."""

    scaling: float | None
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def by_hand(self) -> bool:
        """True where no fused kernel computes it."""
        return self.softcap is not None or self.sinks is not None

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool = False,
    ) -> torch.Tensor:
        """Return `[batch, heads, queries, dim]` for such `query`; `mask` is added to the scores."""
        if not self.by_hand:
            return scaled_dot_product_attention(
                query,
                keys,
                values,
                attn_mask=mask,
                is_causal=causal,
                scale=self.scaling,
                enable_gqa=query.shape[1] != keys.shape[1],
            )
        scores = query @ keys.transpose(-1, -2) * (self.scaling or query.shape[-1] ** -0.5)
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        if mask is not None:
            scores = scores + mask
        if self.sinks is not None:
            # As many heads, in the same order, whether the query heads stand in the head dimension or beside it.
            sinks = self.sinks.reshape(1, query.shape[1], -1, 1).to(scores.dtype)
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        return weights[..., : keys.shape[2]] @ values


def _additive(outside: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Turn a mask of what not to look at into what to add to the scores."""
    return torch.zeros(outside.shape, dtype=like.dtype, device=like.device).masked_fill_(outside, -math.inf)


AttentionInterface.register(ATTENTION_NAME, rolling_attention)
