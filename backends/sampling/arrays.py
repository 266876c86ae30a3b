"""Functions on arrays that the sampler needs and the array API standard lacks.

An array is a NumPy array or a torch tensor. Everything else comes from `array_api_compat.array_namespace`, so torch is
never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

Array: TypeAlias = Any


def topk(rows: Array, k: int) -> tuple[Array, Array]:
    """Return the k greatest values of each row, best first, and their positions, `[rows, k]` each.

    Equal values are in any order.
    """
    if is_torch_array(rows):
        best = rows.topk(k, dim=-1)
        return best.values, best.indices
    some = np.argpartition(rows, rows.shape[-1] - k, axis=-1)[:, -k:]
    values = np.take_along_axis(rows, some, axis=-1)
    order = np.argsort(-values, axis=-1)
    return np.take_along_axis(values, order, axis=-1), np.take_along_axis(some, order, axis=-1)


def cumsum(rows: Array) -> Array:
    """Return the cumulative sum of each row, accumulated in double precision on CPUs, as torch does by itself."""
    return rows.cumsum(-1) if is_torch_array(rows) else rows.cumsum(-1, dtype=np.float64)


def column(values: Sequence[float], like: Array) -> Array:
    """Return `[rows, 1]` with the dtype and on the device of `like`."""
    return array_namespace(like).asarray(values, dtype=like.dtype, device=device(like))[:, None]


def logsumexp(rows: Array) -> Array:
    """Return the logarithm of each row's sum of exponentials, `[rows, 1]`."""
    if is_torch_array(rows):
        return rows.logsumexp(dim=-1, keepdim=True)
    greatest = rows.max(axis=-1, keepdims=True)
    powers = rows - greatest
    np.exp(powers, out=powers)
    return greatest + np.log(powers.sum(axis=-1, keepdims=True))


def log_softmax(rows: Array) -> Array:
    """Return the log probabilities of each row."""
    return rows.log_softmax(dim=-1) if is_torch_array(rows) else rows - logsumexp(rows)


def softmax(rows: Array) -> Array:
    """Return the probabilities of each row."""
    if is_torch_array(rows):
        return rows.softmax(dim=-1)
    probs = rows - rows.max(axis=-1, keepdims=True)
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=-1, keepdims=True)
    return probs
