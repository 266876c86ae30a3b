"""What each client takes. Who takes most is found at once, however many clients there are."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import Generic, TypeVar

from lmi_handlers.core.usage import Owner

T = TypeVar("T")

_SPARE = 64
"""Outdated entries of a heap, beside one per client, until it is built again."""


class ClientShares:
    """Amounts by client."""

    def __init__(self) -> None:
        self._keys = _Amounts[str]()
        self._tenants: defaultdict[str, _Amounts[Owner]] = defaultdict(_Amounts)

    def add(self, owner: Owner, amount: int) -> None:
        """Add to what a client takes. `amount` may be negative. A client with 0 is forgotten."""
        self._keys.add(owner.key_label, amount)
        self._tenants[owner.key_label].add(owner, amount)

    def greediest(self) -> Owner:
        """Return the API key that takes most, with that of its tenants that takes most: clients could invent tenants.

        Of several, it is one that has not changed for long. Raises `IndexError` if there is no client.
        """
        return self._tenants[self._keys.largest()].largest()


class _Amounts(Generic[T]):
    """Amounts by name. Each change adds an entry to a heap, and makes an earlier one outdated."""

    def __init__(self) -> None:
        self._amounts: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []  # (-amount, number of the change, name)
        self._changes = 0

    def add(self, name: T, amount: int) -> None:
        self._amounts[name] = amount = self._amounts.get(name, 0) + amount
        self._changes += 1
        heapq.heappush(self._heap, (-amount, self._changes, name))
        if not amount:
            del self._amounts[name]
        if len(self._heap) > 2 * len(self._amounts) + _SPARE:
            self._heap = [(-amount, place, name) for place, (name, amount) in enumerate(self._amounts.items())]
            heapq.heapify(self._heap)

    def largest(self) -> T:
        while True:
            amount, _, name = self._heap[0]
            if self._amounts.get(name) == -amount:
                return name
            heapq.heappop(self._heap)
