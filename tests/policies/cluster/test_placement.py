"""Homes: the same for all, by weight, and only what must move moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.policies.cluster.placement import NOBODY, Nodes, choose, keys, owner, owners, would_own

PINNED_KEYS = [10451216379200822465, 13757245211066428519, 17911839290282890590, 4638043754431676516]
PINNED_HOMES = [4, 2, 4, 3]
PINNED_WEIGHTED = [4, 2, 4, 3]


def nodes(*weights: float) -> Nodes:
    return Nodes(tuple(1000 + i for i in range(len(weights))), weights)


def some_keys(count: int) -> np.ndarray:
    return keys(np.arange(count, dtype=np.uint64), np.zeros(count, np.int64))


def test_homes_never_change_from_version_to_version() -> None:
    """Daemons and jobs compute them apart; another hash would need another protocol."""
    wanted = keys(np.array([1, 1, 1, 2**64 - 1], np.uint64), np.array([0, 1, 2, 7]))
    assert wanted.tolist() == PINNED_KEYS
    assert owners(nodes(1, 1, 1, 1, 1).table(), wanted).tolist() == PINNED_HOMES
    assert owners(nodes(1, 2, 3, 4, 5).table(), wanted).tolist() == PINNED_WEIGHTED


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_one_is_told_as_many_are(path_hash: int, index: int) -> None:
    table = nodes(1, 2, 3, 4, 5).table()
    wanted = keys(np.array([path_hash], np.uint64), np.array([index]))
    assert owner(table, path_hash, index) == owners(table, wanted)[0]


@pytest.mark.parametrize(("count", "within"), [(2, 0.02), (8, 0.02), (64, 0.1)])
def test_equal_nodes_have_equal_shares(count: int, within: float) -> None:
    found = np.bincount(owners(nodes(*[1.0] * count).table(), some_keys(1_000_000)), minlength=count)
    assert abs(found / found.mean() - 1).max() < within


@pytest.mark.parametrize("weights", [[1.0] * 300, [1.0, 3.0] * 50])
def test_of_many_nodes_none_has_much_more_than_its_share_and_little_moves_when_one_is_lost(
    weights: list[float],
) -> None:
    some = nodes(*weights)
    table, share = some.table(), np.array(weights) / sum(weights)
    room = np.bincount(table, minlength=len(weights)) / len(table) / share
    assert room.max() <= 1.02, "a hundredth more, and a slot for what is not whole"
    found = np.bincount(owners(table, some_keys(2_000_000)), minlength=len(weights)) / 2e6 / share
    assert found.max() <= 1.05 + 1 / np.sqrt(2e6 * share.min())
    fewer = some.table(gone={7})
    assert 7 not in fewer
    assert np.mean(fewer != table) <= share[7] + 0.01


def test_shares_are_as_the_weights() -> None:
    found = np.bincount(owners(nodes(1, 2, 0, 5).table(), some_keys(400_000)), minlength=4)
    assert found[2] == 0
    assert (found / 50_000).tolist() == pytest.approx([1, 2, 0, 5], rel=0.03)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0]), min_size=2, max_size=9), st.data())
def test_only_the_keys_of_a_lost_node_move(weights: list[float], data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, len(weights) - 1))
    every, fewer = nodes(*weights).table(), nodes(*weights).table(gone={lost})
    assert not np.any(fewer == lost)
    assert np.array_equal(every[every != lost], fewer[every != lost])


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_what_the_caches_have_no_room_for_is_nobodys_whoever_is_there(share: float) -> None:
    whole, part = nodes(1, 2, 3).table(), Nodes((1000, 1001, 1002), (1.0, 2.0, 3.0), 6 / share)
    table = part.table()
    assert np.mean(table >= 0) == pytest.approx(share, abs=0.005)
    assert np.array_equal(table[table >= 0], whole[table >= 0]), "the others have the same owner"
    assert NOBODY not in table
    assert [would_own(number) for number in table[:1000]] == whole[:1000].tolist()
    fewer = part.table(gone={1})
    assert np.mean(fewer >= 0) == pytest.approx(share * 4 / 6, abs=0.005)
    assert not np.any(fewer[table < 0] >= 0), "what fewer have room for, more had too"
    for wrong in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="data"):
            Nodes((1,), (1.0,), wrong)


@pytest.mark.parametrize("weights", [(1.0,) * 5, (1.0, 2.0, 0.5, 1.0, 1.0)])
def test_of_some_slots_the_owners_are_those_of_all(weights: tuple[float, ...]) -> None:
    nodes, at = Nodes(tuple(range(5)), weights, 20.0), np.array([7, 3, 262_143])
    assert nodes.table({1}, at).tolist() == nodes.table({1})[at].tolist()
    assert len(nodes.table({1}, at[:0])) == 0


def test_where_nobody_has_room_nobody_is_home() -> None:
    assert set(nodes(0, 0).table().tolist()) == {NOBODY}
    assert set(nodes(1).table(gone={0}).tolist()) == {NOBODY}


def test_chunks_of_one_file_have_different_homes() -> None:
    found = owners(nodes(1, 1, 1, 1).table(), keys(np.full(4000, 77, np.uint64), np.arange(4000)))
    assert np.bincount(found).tolist() == pytest.approx([1000] * 4, rel=0.12)


@pytest.mark.parametrize(
    ("hashes", "weights"), [((), ()), ((1,), (1.0, 2.0)), ((1, 1), (1.0, 1.0)), ((1,), (-1.0,)), ((1,), (np.nan,))]
)
def test_nodes_that_cannot_be(hashes: tuple[int, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"node|weight"):
        Nodes(hashes, weights)


def test_all_are_replicated_where_all_fit() -> None:
    assert choose(100, [100, 200]) == "replicate"
    assert choose(101, [100, 200]) == "partition"
    assert choose(100, [0, 200]) == "replicate", "a node without room stages nothing in any case"
    assert choose(1, [0]) == "partition"
