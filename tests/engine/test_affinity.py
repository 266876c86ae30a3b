"""Which server gets a request for a key: the same one while it has room, an equal share of the keys, few that move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.affinity import choose, has_room, ranked

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20, unique=True)
LOADS = st.dictionaries(st.text(min_size=1, max_size=12), st.integers(0, 500), min_size=1, max_size=20)


@given(NAMES, st.binary(max_size=100), st.randoms())
def test_all_processes_rank_alike(names: list[str], key: bytes, order: object) -> None:
    again = list(names)
    order.shuffle(again)  # type: ignore[attr-defined]
    assert ranked(names, key) == ranked(again, key)
    assert sorted(ranked(names, key)) == sorted(names)


@given(NAMES, st.binary(max_size=100))
def test_a_server_that_leaves_moves_its_own_keys_only(names: list[str], key: bytes) -> None:
    whole = ranked(names, key)
    for gone in names[1:]:
        assert ranked([name for name in names if name != gone], key) == [name for name in whole if name != gone]


@given(LOADS, st.binary(max_size=100))
def test_the_first_with_room_is_chosen(loads: dict[str, int], key: bytes) -> None:
    chosen = choose(loads, key)
    assert loads[chosen] <= 1.25 * sum(loads.values()) / len(loads) + 1
    before = ranked(loads, key)[: ranked(loads, key).index(chosen)]
    assert not any(has_room(loads[name], loads.values()) for name in before)


def test_each_server_gets_its_share_of_the_keys() -> None:
    for names in (["0", "1", "2"], [f"a{number}" for number in range(7)]):
        firsts = Counter(ranked(names, b"%d" % key)[0] for key in range(7000))
        assert all(0.8 < firsts[name] * len(names) / 7000 < 1.2 for name in names), firsts
