"""Attention over a flattened batch: the new tokens of all sequences are in one row, their past is in the cache.

transformers calls `rolling_attention` by its registered name in every layer. The model passes the step's `BatchLayout`
down as a keyword argument, so there is no global state. There are two cases. A token that continues a sequence (decode)
is computed together with those of other sequences. A piece of a prompt (prefill) is computed by itself.
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
    """The model needs something that `rolling_attention` does not support."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Consecutive slots that get one token each, starting at `first_token` in the batch and `first_slot` in the cache.

    `lengths` has the number of cached tokens of each sequence, including the new one.
    """

    first_token: int
    first_slot: int
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """Tokens `start:stop` of the batch, a piece of the prompt in `slot`. `past` tokens of it are cached already."""

    start: int
    stop: int
    slot: int
    past: int


@dataclass(slots=True)
class BatchLayout:
    """Where each token of a step belongs. `slots` and `positions` have one entry per token.

    `windows` collects the sliding window that each layer passes, so that a caller can check it.
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
        """Return the cache index for each head of each token, `[kv_heads * tokens]`. See `KVCache.write`."""
        index = self._indices.get(kv_heads)
        if index is None or index.device != device:
            heads = torch.arange(kv_heads, device=device)[:, None]
            rows = self.slots.to(device) * kv_heads + heads
            index = (rows * self.cache.num_positions + self.positions.to(device)).flatten()
            self._indices[kv_heads] = index
        return index

    def decode_mask(self, group: DecodeGroup, first: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """Return the additive mask for the scores of a decode group, `[slots, 1, 1, positions from first]`.

        Layers with the same window share one mask.
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
    """Compute attention of N tokens, each to its own sequence.

    `query` is `[1, heads, N, dim]`. The result is `[1, N, heads, dim]`.
    """
    if rolling_batch is None or attention_mask is not None or position_bias is not None or is_causal is False:
        raise AttentionNotSupported("its attention is not purely causal")
    layout = rolling_batch
    layer: int = module.layer_idx  # type: ignore[assignment]  # every attention module of the library has one
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
    """Compute attention of one token per slot to the slot's past. Returns `[slots, heads, dim]`.

    Query heads that share a key-value head are passed to the kernel as query positions of that head. This way no key is
    copied, and each key is read only once.
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
    """Compute attention of the last tokens of a sequence to all of it.

    `query` is `[1, heads, tokens, dim]`. The result is `[tokens, heads, dim]`.
    """
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
        # Not every platform has a fused kernel that supports both a mask and fewer key heads than query heads.
        groups = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    return scoring.attend(query, keys, values, mask, causal=mask is None)[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """How a layer computes attention weights: the scale, Gemma's soft cap, and gpt-oss's sink per head."""

    scaling: float | None
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def by_hand(self) -> bool:
        """True if no fused kernel supports it."""
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
        """Return the attention output, `[batch, heads, queries, dim]` like `query`. `mask` is added to the scores."""
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
            # Grouped query heads are in the query dimension, otherwise in the head dimension. The order is the same.
            sinks = self.sinks.reshape(1, query.shape[1], -1, 1).to(scores.dtype)
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        return weights[..., : keys.shape[2]] @ values


def _additive(outside: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Turn a boolean mask of excluded positions into an additive mask."""
    return torch.zeros(outside.shape, dtype=like.dtype, device=like.device).masked_fill_(outside, -math.inf)


AttentionInterface.register(ATTENTION_NAME, rolling_attention)
