"""What is made of a request's lists, once for all of its samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 8
_FEW = 1024
"""Entries of lists of which something is made at once."""


class MadeOnce:
    """Remembers what was made of long lists, by the lists themselves: to compare or to hash them takes as long again.

    The samples of a request have the same lists. A vocabulary has 150,000 tokens, and of as many ids, each sample would
    take some ten milliseconds in which all other sequences wait.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Hashable, ...], tuple[tuple[Sized | None, ...], Any]] = OrderedDict()

    def get(self, make: Callable[[], T], *lists: Sized | None, kind: Hashable = None) -> T:
        """Return what `make` returns, for these lists, which do not change. `kind` is all else that it depends on."""
        if sum(len(some) for some in lists if some is not None) < _FEW:
            return make()
        key = kind, *(id(some) if some else None for some in lists)  # there are many empty lists
        entry = self._made.pop(key, None) or (lists, make())
        self._made[key] = entry  # as long as the lists are here, nothing else has their ids
        if len(self._made) > _MOST:
            self._made.popitem(last=False)
        made: T = entry[1]
        return made
