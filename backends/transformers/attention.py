"""Attention over a flattened batch: the new tokens of all sequences are in one row, their past is in blocks.

transformers calls `rolling_attention` by its registered name in every layer. The model passes the step's `BatchLayout`
down as a keyword argument, so there is no global state.

Query heads that share a key-value head are passed to the kernels as further queries of that head. This way no key is
copied for them, and each key is read only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from backends.transformers.layout import BatchLayout, InPlace, Segment, Shape

ATTENTION_NAME = "lmi_rolling_batch"
MAX_DECODE_TOKENS = 16
"""Up to this many tokens, with drafts, sequences are computed together. More are computed one sequence after another."""


class AttentionNotSupported(Exception):
    """The model needs something that `rolling_attention` does not support."""


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
    kv_heads = key.shape[1]
    shape = Shape(sliding_window, kv_heads, query.shape[1] // kv_heads, query.dtype, query.device)
    cached_keys, cached_values = layout.cache.write(layer, key[0], value[0], layout.cache_index(shape))
    scoring = _Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    parts = []
    for segment in layout.segments:
        queries = query[:, :, segment.tokens]
        if segment.pasts == [0]:
            keys, values = key[:, :, segment.tokens], value[:, :, segment.tokens]
            parts.append(_first_tokens(layout, segment, shape, scoring, queries, keys, values))
            continue
        grouped = _group(queries, segment, shape)
        if _is_faster_in_place(segment, shape, scoring):
            reads = layout.in_place(segment, shape)
            out = _attend_in_place(reads, scoring.scaling, grouped, cached_keys, cached_values)
        else:
            copied = layout.copied(segment, shape)
            out = scoring.attend(
                grouped,
                _select(cached_keys, copied.rows, len(segment.pasts)),
                _select(cached_values, copied.rows, len(segment.pasts)),
                copied.mask,
            )
        parts.append(_ungroup(out, segment, shape))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _first_tokens(
    layout: BatchLayout,
    segment: Segment,
    shape: Shape,
    scoring: _Scoring,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Compute attention of a prompt's first tokens to each other. Returns `[tokens, heads, dim]`."""
    if scoring.by_hand or (shape.window is not None and segment.num_tokens > shape.window):
        mask = layout.prompt_mask(segment, shape)
        return _ungroup(scoring.attend(_group(queries, segment, shape), keys, values, mask), segment, shape)
    out = scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=scoring.scaling, enable_gqa=shape.queries_per_head > 1
    )
    return out[0].transpose(0, 1)


def _group(queries: torch.Tensor, segment: Segment, shape: Shape) -> torch.Tensor:
    """`[1, heads, sequences * tokens, dim]` -> `[sequences, kv_heads, tokens * queries_per_head, dim]`."""
    split = queries.reshape(shape.kv_heads, shape.queries_per_head, len(segment.pasts), segment.num_tokens, -1)
    return split.permute(2, 0, 3, 1, 4).flatten(2, 3)


def _ungroup(out: torch.Tensor, segment: Segment, shape: Shape) -> torch.Tensor:
    """`[sequences, kv_heads, tokens * queries_per_head, dim]` -> `[sequences * tokens, heads, dim]`."""
    count, kv_heads, _, dim = out.shape
    split = out.reshape(count, kv_heads, segment.num_tokens, shape.queries_per_head, dim)
    return split.transpose(1, 2).reshape(count * segment.num_tokens, -1, dim)


def _select(stored: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    """Copy from `[num_blocks, kv_heads, BLOCK_SIZE, dim]`. Returns `[count, kv_heads, positions, dim]`."""
    kv_heads, dim = stored.shape[1], stored.shape[3]
    return stored.view(stored.shape[0] * kv_heads, -1).index_select(0, index).view(count, kv_heads, -1, dim)


def _is_faster_in_place(segment: Segment, shape: Shape, scoring: _Scoring) -> bool:
    """On a CPU copying costs more than attention itself. Products of 16-bit numbers would lose precision, though."""
    return (
        shape.device.type == "cpu"
        and shape.dtype == torch.float32
        and segment.num_tokens <= MAX_DECODE_TOKENS
        and not scoring.by_hand
    )


def _attend_in_place(
    reads: InPlace, scaling: float, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Compute attention block by block. `queries` and the result are `[sequences, kv_heads, queries, dim]`."""
    count, kv_heads, num_queries, _ = queries.shape
    num_reads, block_size, dim = reads.rows.shape[0], keys.shape[2], values.shape[3]
    by_read = queries.index_select(0, reads.rows).flatten(0, 1)
    scores = queries.new_empty((num_reads + 1) * kv_heads, num_queries, block_size)
    scores[num_reads * kv_heads :] = -math.inf
    for at, blocks in _blocks(reads, keys):
        torch.baddbmm(reads.mask[at], by_read[at], blocks.transpose(1, 2), alpha=scaling, out=scores[at])
    rows = scores.view(-1, block_size).index_select(0, reads.by_sequence)
    weights = rows.view(count * kv_heads * num_queries, -1).softmax(dim=-1)
    weights = weights.view(-1, block_size).index_select(0, reads.by_read).view(-1, num_queries, block_size)
    parts = queries.new_empty((num_reads + 1) * kv_heads, num_queries, dim)
    parts[num_reads * kv_heads :] = 0
    for at, blocks in _blocks(reads, values):
        torch.bmm(weights[at], blocks, out=parts[at])
    parts = parts.view(num_reads + 1, -1).index_select(0, reads.places)
    return parts.view(count, -1, kv_heads, num_queries, dim).sum(dim=1)


def _blocks(reads: InPlace, stored: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield ranges of reads and what they read. Both count the key-value heads of the reads."""
    kv_heads, end = stored.shape[1], len(reads.copied)
    if end:
        yield slice(0, end * kv_heads), stored.index_select(0, reads.copied).flatten(0, 1)
    for first, count in reads.runs:
        start, end = end, end + count
        yield slice(start * kv_heads, end * kv_heads), stored[first : first + count].flatten(0, 1)


class _Scoring(NamedTuple):
    """The parameters of a layer's attention weights: the scale, Gemma's soft cap, and gpt-oss's sink per head."""

    scaling: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def by_hand(self) -> bool:
        """True if no fused kernel supports it."""
        return self.softcap is not None or self.sinks is not None

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the attention output, `[batch, heads, queries, dim]` like `query`. `mask` is added to the scores."""
        if not self.by_hand:
            return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self.scaling)
        scores = query @ keys.transpose(-1, -2) * self.scaling
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        scores = scores + mask
        if self.sinks is not None:
            sinks = self.sinks.to(scores.dtype).view(1, query.shape[1], -1)  # those of the queries of one token
            sinks = sinks.repeat(1, 1, query.shape[2] // sinks.shape[2])[..., None]
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        return weights[..., : keys.shape[2]] @ values


AttentionInterface.register(ATTENTION_NAME, rolling_attention)
