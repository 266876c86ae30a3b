"""Which client takes most, whatever changes, and at what cost."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.usage import Owner
from lmi_handlers.engine.client_shares import ClientShares

OWNERS = [Owner(key, tenant) for key in ("red", "blue") for tenant in ("", "1", "2", "3")]


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(-3, 5)), min_size=1, max_size=300))
def test_the_greediest_has_most_of_the_key_that_has_most(changes: list[tuple[Owner, int]]) -> None:
    shares, expected = ClientShares(), Counter[Owner]()
    for owner, amount in changes:
        amount = max(amount, -expected[owner])
        shares.add(owner, amount)
        expected[owner] += amount
        keys = Counter[str]()
        for name, count in expected.items():
            keys[name.key_label] += count
        if not any(keys.values()):
            continue
        greediest = shares.greediest()
        assert keys[greediest.key_label] == max(keys.values())
        tenants = {name: count for name, count in expected.items() if name.key_label == greediest.key_label}
        assert expected[greediest] == max(tenants.values())


def test_an_eviction_costs_no_more_with_more_clients() -> None:
    """Few entries are looked at and few are kept, while 4,096 clients take turns, and while nobody asks."""
    shares, looked_at = ClientShares(), 0
    owners = [Owner("key", f"{number}") for number in range(4096)]
    for owner in owners * 5:
        shares.add(owner, 1)

    def count(_: FrameType, event: str, function: object) -> None:
        nonlocal looked_at
        looked_at += event == "c_call" and function is heapq.heappop

    sys.setprofile(count)
    try:
        for owner in owners:
            shares.add(shares.greediest(), -1)
            shares.add(owner, 1)
    finally:
        sys.setprofile(None)
    assert looked_at < 8 * len(owners)
