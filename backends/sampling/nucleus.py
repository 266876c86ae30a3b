"""Finds the smallest set of tokens with a given total probability, for top-p and typical sampling."""

from __future__ import annotations

import torch


def outside_typical_p(scores: torch.Tensor, masses: torch.Tensor, sizes: tuple[int, ...] = ()) -> torch.Tensor:
    """Mark the tokens that typical sampling excludes.

    It keeps the smallest set of tokens that holds the mass, starting with those whose information is closest to the
    entropy. See `nucleus_threshold` for `masses` and `sizes`.
    """
    logprobs = scores.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -(logprobs * probs).nansum(dim=-1, keepdim=True)
    typicality = -(-logprobs - entropy).abs()
    return typicality < nucleus_threshold(typicality, probs, masses, sizes)


def nucleus_threshold(
    keys: torch.Tensor, probs: torch.Tensor, masses: torch.Tensor, sizes: tuple[int, ...] = ()
) -> torch.Tensor:
    """Return each row's lowest key among the tokens to keep, `[rows, 1]` like `masses`.

    The tokens to keep are those with the highest keys, as few as hold the row's mass. The search looks at the best
    `sizes[0]` tokens first, then at `sizes[1]`, and finally at the whole vocabulary. Passing `sizes` is faster, but
    makes a GPU wait for the CPU.
    """
    vocab_size = keys.shape[-1]
    threshold = torch.empty_like(masses)
    rows = torch.arange(len(keys), device=keys.device)
    for size in sizes:
        size = min(size, vocab_size)
        found, inside = _search(keys[rows], probs[rows], masses[rows], size)
        threshold[rows] = found
        rows = rows[inside.squeeze(1) >= size]  # these rows need more tokens
        if size == vocab_size or rows.numel() == 0:
            return threshold
    threshold[rows], _ = _search(keys[rows], probs[rows], masses[rows], vocab_size)
    return threshold


def _search(
    keys: torch.Tensor, probs: torch.Tensor, masses: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's threshold among its `size` best tokens, and how many precede it: `size` if too few."""
    best, ids = keys.topk(size, dim=-1)
    inside = (probs.gather(1, ids).cumsum(dim=-1) < masses).sum(dim=-1, keepdim=True)
    return best.gather(1, inside.clamp(max=size - 1)), inside
