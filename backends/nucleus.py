"""The fewest tokens that hold a share of the probability: what top-p and typical sampling have in common."""

from __future__ import annotations

import torch


def outside_typical_p(scores: torch.Tensor, masses: torch.Tensor, sizes: tuple[int, ...] = ()) -> torch.Tensor:
    """Mark what lies beyond the fewest tokens of about average information that hold the mass. See `nucleus_threshold`."""
    logprobs = scores.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -(logprobs * probs).nansum(dim=-1, keepdim=True)
    typicality = -(-logprobs - entropy).abs()
    return typicality < nucleus_threshold(typicality, probs, masses, sizes)


def nucleus_threshold(
    keys: torch.Tensor, probs: torch.Tensor, masses: torch.Tensor, sizes: tuple[int, ...] = ()
) -> torch.Tensor:
    """Return the least key of the fewest best-keyed tokens that hold the mass, `[rows, 1]` as `masses` is.

    Of `sizes` the first that suffices is searched, which is faster than the whole vocabulary, but makes a GPU wait for
    the CPU.
    """
    vocab_size = keys.shape[-1]
    threshold = torch.empty_like(masses)
    rows = torch.arange(len(keys), device=keys.device)
    for size in sizes:
        size = min(size, vocab_size)
        found, inside = _search(keys[rows], probs[rows], masses[rows], size)
        threshold[rows] = found
        rows = rows[inside.squeeze(1) >= size]  # these need more tokens than were looked at
        if size == vocab_size or rows.numel() == 0:
            return threshold
    threshold[rows], _ = _search(keys[rows], probs[rows], masses[rows], vocab_size)
    return threshold


def _search(
    keys: torch.Tensor, probs: torch.Tensor, masses: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's threshold among its `size` best, and how many of these are needed, `size` where they do not suffice."""
    best, ids = keys.topk(size, dim=-1)
    inside = (probs.gather(1, ids).cumsum(dim=-1) < masses).sum(dim=-1, keepdim=True)
    return best.gather(1, inside.clamp(max=size - 1)), inside
