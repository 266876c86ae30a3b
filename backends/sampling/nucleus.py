"""Finds the smallest set of tokens with a given total probability, for top-p and typical sampling."""

from __future__ import annotations

from array_api_compat import array_namespace

from backends.sampling.arrays import Array, cumsum, log_softmax, topk


def outside_typical_p(scores: Array, masses: Array, sizes: tuple[int, ...] = ()) -> Array:
    """Mark the tokens that typical sampling excludes.

    It keeps the smallest set of tokens that holds the mass, starting with those whose information is closest to the
    entropy. See `nucleus_threshold` for `masses` and `sizes`.
    """
    xp = array_namespace(scores)
    logprobs = log_softmax(scores)
    probs = xp.exp(logprobs)
    # A token that is already excluded contributes nothing, where -inf * 0 would be NaN.
    negative_entropy = xp.sum(xp.where(probs > 0, logprobs * probs, 0.0), axis=-1, keepdims=True)
    typicality = -xp.abs(logprobs - negative_entropy)
    return typicality < nucleus_threshold(typicality, probs, masses, sizes)


def nucleus_threshold(keys: Array, probs: Array, masses: Array, sizes: tuple[int, ...] = ()) -> Array:
    """Return each row's lowest key among the tokens to keep, `[rows, 1]` like `masses`.

    The tokens to keep are those with the highest keys, as few as hold the row's mass. The search looks at the best
    `sizes[0]` tokens first, then at `sizes[1]`, and finally at the whole vocabulary. Passing `sizes` is faster, but
    makes a GPU wait for the CPU.
    """
    xp = array_namespace(keys)
    vocab_size = keys.shape[-1]
    size = min(vocab_size, sizes[0] if sizes else vocab_size)
    best, ids = topk(keys, size)
    cumulative = cumsum(xp.take_along_axis(probs, ids, axis=-1))
    inside = xp.count_nonzero(cumulative < masses, axis=-1, keepdims=True)
    threshold = xp.take_along_axis(best, xp.clip(inside, max=size - 1), axis=-1)
    if size < vocab_size:
        rows = xp.nonzero(inside[:, 0] == size)[0]  # these need more tokens
        if rows.shape[0] > 0:
            threshold[rows] = nucleus_threshold(keys[rows], probs[rows], masses[rows], sizes[1:])
    return threshold
