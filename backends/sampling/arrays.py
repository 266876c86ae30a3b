"""Functions on arrays that the sampler needs and the array API standard lacks.

An array is a NumPy array or a torch tensor. Everything else comes from `array_api_compat.array_namespace`, so torch is
never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_torch_array

Array: TypeAlias = Any


def topk(rows: Array, k: int) -> tuple[Array, Array]:
    """Return the k greatest values of each row, best first, and their positions, `[rows, k]` each.

    Equal values are in any order.
    """
    if is_torch_array(rows):
        best = rows.topk(k, dim=-1)
        return best.values, best.indices
    ids = np.empty((len(rows), k), np.intp)
    for row, bound, chosen in zip(rows, _bounds(rows, k), ids, strict=True):
        high = row >= bound if bound > -np.inf else row > -np.inf
        some = np.flatnonzero(high)
        if len(some) < k:  # all others are minus infinity, or the row has values that are no numbers
            some = np.append(some, np.flatnonzero(~high)[: k - len(some)])
        chosen[:] = some[np.argsort(-row[some])[:k]]
    return np.take_along_axis(rows, ids, axis=-1), ids


def _bounds(rows: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.floating]:
    """Return for each row a number that at least k of its values reach, and usually few others, `[rows]`.

    It is the k-th greatest of the maxima of some groups. NumPy's partition of whole rows takes ten times as long, and
    many times that if most values are equal, as they are after `top_k`.
    """
    num_rows, size = rows.shape
    groups = min(size, max(4 * k, 256))
    members = size // groups
    maxima = rows[:, : members * groups].reshape(num_rows, members, groups).max(axis=1)
    bounds: npt.NDArray[np.floating] = np.partition(maxima, groups - k, axis=-1)[:, groups - k]
    return bounds


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
    powers = np.empty(rows.shape[-1], rows.dtype)
    totals = np.empty((len(rows), 1), rows.dtype)
    for row, total in zip(rows, totals, strict=True):  # the powers of one row stay in the processor's cache
        greatest = row.max()
        _exp(row, greatest, powers)
        total[0] = greatest + np.log(powers.sum())
    return totals


def log_softmax(rows: Array) -> Array:
    """Return the log probabilities of each row."""
    return rows.log_softmax(dim=-1) if is_torch_array(rows) else rows - logsumexp(rows)


def softmax(rows: Array) -> Array:
    """Return the probabilities of each row."""
    if is_torch_array(rows):
        return rows.softmax(dim=-1)
    probs = np.empty_like(rows)
    for row, result in zip(rows, probs, strict=True):
        _exp(row, row.max(), result)
        result /= result.sum()
    return probs


def _exp(row: npt.NDArray[np.floating], greatest: np.floating, powers: npt.NDArray[np.floating]) -> None:
    """Write the exponentials of what a row's values are below the greatest of them."""
    np.subtract(row, greatest, out=powers)
    np.exp(powers, out=powers)
