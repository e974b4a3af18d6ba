"""policies/siblings: epochs of opens against the policy, and what holds for any sequence of calls."""

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.prefetch.siblings import Siblings

MB = 1_000_000
SIZE = 110_000


def names_of(count: int) -> list[bytes]:
    return [b"%06d.jpg" % i for i in range(count)]


@dataclass
class Reader:
    """Opens files in a given order and fetches at once what the policy hands out, `rate` files for each open."""

    policy: Siblings = field(default_factory=lambda: Siblings(8 * MB, budget_bytes=256 * MB))
    rate: int = 4
    size: int = SIZE
    now_s: float = 0.0
    fetched: list[tuple[int, bytes]] = field(default_factory=list)
    staged: set[tuple[int, bytes]] = field(default_factory=set)
    asked: int = 0
    most_ahead: int = 0

    def read(self, opens: Iterable[bytes], listing: Sequence[bytes], directory: int = 1, every_s: float = 0.005) -> int:
        """How many of `opens` had been staged before they came."""
        hits = 0
        for name in opens:
            self.now_s += every_s
            here = (directory, name) in self.staged
            hits += here
            if self.policy.opened(directory, name, self.size, self.now_s, staged=here):
                self.asked += 1
                self.policy.listed(directory, listing, self.now_s)
            self.staged.add((directory, name))
            self.fetch(self.rate)
        return hits

    def fetch(self, count: int) -> None:
        for found in self.policy.next(count, self.now_s):
            if found in self.staged:
                self.policy.drop(*found)
            elif self.policy.admit(*found, self.size):
                self.fetched.append(found)
                self.staged.add(found)
        self.most_ahead = max(self.most_ahead, self.policy.ahead_bytes)


def handed_out(policy: Siblings, count: int, now_s: float) -> list[tuple[Hashable, bytes]]:
    """What it hands out in several calls, `count` files at most."""
    found: list[tuple[Hashable, bytes]] = []
    while more := policy.next(count - len(found), now_s):
        found += more
    return found


def shuffled(names: Sequence[bytes], seed: int = 1) -> list[bytes]:
    return random.Random(seed).sample(names, len(names))


def interleaved(names: Sequence[bytes], workers: int, batch: int) -> list[bytes]:
    """As loader workers read one order: each takes every `workers`-th batch, all at the same pace."""
    out = []
    for first in range(0, len(names), workers * batch):
        parts = [names[first + w * batch : first + (w + 1) * batch] for w in range(workers)]
        out += [part[i] for i in range(batch) for part in parts if i < len(part)]
    return out


# When it begins


@pytest.mark.parametrize(
    ("opens", "every_s", "staged", "size", "asked"),
    [
        pytest.param(names_of(7), 0.1, False, SIZE, False, id="seven files"),
        pytest.param(names_of(8), 0.1, False, SIZE, True, id="eight files"),
        pytest.param(names_of(8), 1.5, False, SIZE, False, id="eight in 10.5 s"),
        pytest.param(names_of(7) * 3, 0.1, False, SIZE, False, id="seven files again and again"),
        pytest.param(names_of(50), 0.1, True, SIZE, False, id="staged files: nothing to do"),
        pytest.param(names_of(50), 0.1, False, 8 * MB + 1, False, id="large files"),
    ],
)
def test_eight_distinct_small_files_in_ten_seconds(
    opens: list[bytes], every_s: float, staged: bool, size: int, asked: bool
) -> None:
    policy = Siblings(8 * MB, budget_bytes=256 * MB)
    found = [policy.opened(1, name, size, i * every_s, staged=staged) for i, name in enumerate(opens)]
    assert any(found) == asked
    assert sum(found) <= 1


def test_a_listing_that_never_came_is_asked_for_again() -> None:
    policy = Siblings(8 * MB, budget_bytes=256 * MB)
    asked = [i for i in range(200) if policy.opened(1, b"%d" % i, SIZE, i * 1.0, staged=False)]
    assert asked == [7, 67, 127, 187]
    policy.listed(1, [], 200.0)
    assert policy.next(10, 200.0) == []


# Order


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_forward_opens_get_the_files_after_the_last_one(by_name: bool, middle: bool) -> None:
    listing = shuffled(names_of(2000))
    order = sorted(listing) if by_name else listing
    start = 1200 if middle else 0  # where the opens begin has no influence
    reader = Reader(rate=0)
    reader.read(order[start : start + 8], listing)
    assert [name for _, name in handed_out(reader.policy, 20, reader.now_s)] == order[start + 8 : start + 28]


def test_every_forward_open_after_the_first_eight_is_foreseen() -> None:
    names = names_of(5000)
    assert Reader().read(names, names) == 4992


def test_loader_workers_in_order_are_in_order() -> None:
    names = names_of(8000)
    reader = Reader(rate=2)
    assert reader.read(interleaved(names, 8, 32), names) >= 7500


def test_a_reader_that_overtakes_is_followed() -> None:
    names = names_of(20_000)
    reader = Reader(rate=4)
    reader.read(names[:100], names)
    assert reader.read(names[9000:9500], names) >= 490


def test_in_order_nothing_before_the_readers_is_fetched() -> None:
    names = names_of(2000)
    reader = Reader(rate=0)
    reader.read(names[1900:1908], names)
    assert [name for _, name in handed_out(reader.policy, 500, reader.now_s)] == names[1908:]


def test_order_is_noticed_after_a_random_beginning() -> None:
    names = names_of(20_000)
    reader = Reader(rate=2)
    reader.read(shuffled(names)[:100], names)
    assert reader.read(names[10_000:], names) >= 9900


def test_the_directory_opened_last_comes_first() -> None:
    reader = Reader(rate=0)
    names = names_of(100)
    for directory in (1, 2, 1):
        reader.read(names[:8], names, directory)
    assert reader.policy.next(1, reader.now_s) == [(1, names[8])]


def test_leaps_with_good_runs_between_them_are_forgiven() -> None:
    names = names_of(20_000)
    reader = Reader(rate=4)
    for start in range(0, 18_000, 3000):
        reader.read(names[start : start + 400], names)
    assert 1 not in reader.policy._off


def test_files_from_a_random_beginning_do_not_count_against_an_order() -> None:
    names = names_of(20_000)
    reader = Reader(rate=20)
    reader.read(shuffled(names)[:64], names)
    directory = reader.policy._active[1]
    reader.rate = 1
    reader.read(names[19_000:19_200], names)
    assert directory.forward
    assert directory.failed == 0


def test_random_order_gains_from_the_budget() -> None:
    names = names_of(4000)  # 440 MB: a budget of 256 MB covers more than half
    reader = Reader()
    assert reader.read(shuffled(names), names) >= 3000
    assert len(reader.fetched) == len(set(reader.fetched))


@pytest.mark.slow
@pytest.mark.parametrize("directories", [1, 30])
def test_of_a_data_set_far_larger_than_the_budget_most_files_are_foreseen(directories: int) -> None:
    """With the budget alone it was less than half of them."""
    names = names_of(30_000 // directories)
    reader, hits = Reader(), 0
    for number, name in shuffled([(directory, name) for directory in range(directories) for name in names]):
        hits += reader.read([name], names, number)
    assert hits >= 26_000
    assert len(reader.fetched) == len(set(reader.fetched))


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, 40])
def test_of_a_part_read_at_random_five_times_as_much_comes_at_most(every: int) -> None:
    names = names_of(60_000)
    reader = Reader(rate=40)
    opened = shuffled(names)[::every]
    reader.read(opened, names)
    assert len(reader.fetched) * SIZE <= 5 * len(opened) * SIZE + 256 * MB


@pytest.mark.slow
def test_no_more_is_ahead_than_the_cache_has_room_for() -> None:
    names = names_of(30_000)
    reader = Reader(Siblings(8 * MB, budget_bytes=256 * MB, cache_bytes=1600 * MB))
    reader.read(shuffled(names), names)
    assert 390 * MB <= reader.most_ahead <= 400 * MB


@pytest.mark.parametrize(("evicts_by_use", "most"), [(False, 256 * MB), (True, 40 * MB)])
def test_what_is_ahead_does_not_drive_itself_out_of_a_small_cache(evicts_by_use: bool, most: int) -> None:
    names = names_of(5_000)
    policy = Siblings(8 * MB, budget_bytes=256 * MB, cache_bytes=160 * MB, evicts_by_use=evicts_by_use)
    reader = Reader(policy)
    reader.read(shuffled(names), names)
    assert most * 0.8 <= reader.most_ahead <= most


def test_without_a_budget_nothing_is_fetched() -> None:
    names = names_of(1000)
    reader = Reader(Siblings(8 * MB, budget_bytes=0))
    assert reader.read(shuffled(names), names) == 0


def test_what_is_unused_of_a_directory_that_is_turned_off_is_charged_to_the_budget() -> None:
    names = names_of(30_000)
    reader = Reader(rate=40)
    reader.read(shuffled(names)[:2000], names, directory=1)
    reader.policy._turn_off(1)
    reader.read([names[0]], names, directory=1)
    others = [b"x%d" % i for i in range(1000)]
    assert reader.read(others, others, directory=2) == 0
    reader.now_s += 700
    assert reader.read(others, others, directory=3) == 992


def test_the_second_epoch_has_nothing_to_do() -> None:
    names = names_of(3000)
    reader = Reader()
    reader.read(shuffled(names), names)
    fetched, asked = len(reader.fetched), reader.asked
    for seed in (2, 3):
        assert reader.read(shuffled(names, seed), names) == 3000
    assert (len(reader.fetched), reader.asked) == (fetched, asked)
    reader.now_s += 700
    reader.fetch(1)
    assert reader.policy.directories == 0
    assert reader.policy.ahead_bytes == 0


# Trials


@pytest.mark.slow
def test_a_random_subset_of_90_percent_stays_on() -> None:
    names = names_of(15_000)
    subset = shuffled(names)[:13_500]
    reader = Reader(rate=1)
    reader.read(subset, names)
    assert 1 not in reader.policy._off
    assert reader.read(subset, names) == 13_500
    assert len(set(reader.fetched) - {(1, name) for name in subset}) * SIZE <= 256 * MB


@pytest.mark.parametrize("seed", range(5))
def test_random_order_is_never_turned_off_by_chance(seed: int) -> None:
    names = names_of(6000)
    reader = Reader(rate=1)
    reader.read(shuffled(names, seed), names)
    assert 1 not in reader.policy._off


def test_every_tenth_file_in_order_is_turned_off() -> None:
    names = names_of(30_000)
    reader = Reader(rate=20)
    reader.read(names[:2000:10], names)
    assert 1 in reader.policy._off
    assert reader.policy.next(10, reader.now_s) == []
    assert reader.policy.ahead_bytes > 0  # unused still counts
    reader.now_s += 700
    reader.fetch(1)
    assert reader.policy.ahead_bytes == 0
    assert reader.read(names[1:200:2], names) < 200
    assert reader.policy.next(10, reader.now_s) == []


def test_files_that_are_only_opened_from_another_part_turn_it_off() -> None:
    listing = names_of(4000)
    opened = [name for i, name in enumerate(listing) if i % 40 < 8]  # every fifth name, hit by none of the fetched
    reader = Reader()
    policy = reader.policy
    for i, name in enumerate(shuffled(opened)):
        reader.now_s += 0.01
        if policy.opened(1, name, SIZE, reader.now_s, staged=False):
            policy.listed(1, listing, reader.now_s)
        for found in policy.next(8, reader.now_s):
            if found[1] in opened:
                policy.drop(*found)  # as if gone
        assert i < 600 or 1 in policy._off


# Budget and age


def test_what_is_not_used_for_600_s_makes_room_for_others() -> None:
    names = names_of(10_000)
    reader = Reader(rate=50)
    reader.read(shuffled(names)[:100], names, every_s=0.1)
    for _ in range(50):
        reader.fetch(1)
    full = reader.policy.ahead_bytes
    assert full >= 220 * MB
    again = shuffled(names)[0]
    for _ in range(12):  # the directory stays in use, slowly
        reader.now_s += 40
        reader.policy.opened(1, again, SIZE, reader.now_s, staged=True)
        assert reader.policy.next(5, reader.now_s) == []
    for _ in range(4):
        reader.now_s += 40
        reader.policy.opened(1, again, SIZE, reader.now_s, staged=True)
        reader.policy.next(0, reader.now_s)
    assert reader.policy.ahead_bytes == 0


def test_a_directory_that_nobody_opens_gives_its_budget_back_within_70_s() -> None:
    reader = Reader(rate=50)
    reader.read(shuffled(names_of(10_000))[:100], names_of(10_000), directory=1)
    reader.now_s += 70
    reader.fetch(0)
    assert reader.policy.ahead_bytes == 0
    other = [b"x%d" % i for i in range(500)]
    assert reader.read(other, other, directory=2) == 492
    assert {directory for directory, _ in reader.fetched[-400:]} == {2}


def test_where_all_that_may_be_is_ahead_files_are_handed_out_several_at_a_time() -> None:
    names = names_of(20_000)
    reader = Reader(rate=0)
    reader.read(names[:8], names)
    handed = []
    for name in names[8:6000]:
        handed.append(len(found := reader.policy.next(8, reader.now_s)))
        reader.staged.update(found)
        reader.read([name], names)
    assert set(handed[3000:]) == {0, 8}


@pytest.mark.parametrize("in_order", [False, True])
def test_after_an_open_it_is_known_at_once_whether_there_is_work(in_order: bool) -> None:
    names = names_of(10_000)
    reader = Reader(rate=0)
    said: list[tuple[bool, bool]] = []
    for name in names if in_order else shuffled(names):
        reader.read([name], names)
        has_work = reader.policy.has_work(1, 8, reader.now_s)
        found = reader.policy.next(8, reader.now_s)
        reader.staged.update(found)
        said.append((has_work, bool(found)))
    assert all(has_work or not found for has_work, found in said)
    assert sum(has_work and not found for has_work, found in said) <= 0.005 * len(names) / 10 + 10
    assert {(True, True), (False, False)} <= set(said)


def test_after_a_sweep_is_due_there_may_be_work() -> None:
    names = names_of(10_000)
    reader = Reader(rate=50)
    reader.read(shuffled(names)[:100], names, every_s=0.1)
    reader.now_s += 700
    reader.policy.opened(1, shuffled(names)[0], SIZE, reader.now_s, staged=True)
    assert reader.policy.has_work(1, 8, reader.now_s)
    reader.fetch(8)
    assert reader.policy.ahead_bytes > 0


def test_readers_in_order_find_room_beside_random_ones() -> None:
    reader = Reader(rate=50)
    reader.read(shuffled(names_of(10_000))[:100], names_of(10_000), directory=1)
    reader.rate = 2
    other = [b"x%04d" % i for i in range(1000)]
    assert reader.read(other, other, directory=2) >= 980


def test_real_sizes_are_held_to_the_budget() -> None:
    policy = Siblings(8 * MB, budget_bytes=10 * MB)
    for i in range(8):
        policy.opened(1, b"%03d" % i, 100_000, i * 0.1, staged=False)
    policy.listed(1, [b"%03d" % i for i in range(100)], 1.0)
    given = handed_out(policy, 100, 1.0)
    assert len(given) == 92
    sizes = [6 * MB, 9 * MB, 0, 1 * MB, 100_000]
    assert [policy.admit(d, name, size) for (d, name), size in zip(given, sizes, strict=False)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert policy.ahead_bytes <= 10 * MB + 4 * 800_000
    assert not policy.admit(1, b"000", 5)  # never handed out
    assert not policy.admit(9, b"000", 5)


def test_a_file_opened_before_its_fetch_began_is_left_to_its_reader() -> None:
    names = names_of(100)
    reader = Reader(rate=0)
    reader.read(names[:8], names)
    (found,) = reader.policy.next(1, reader.now_s)
    reader.read([found[1]], names)
    assert not reader.policy.admit(*found, SIZE)
    assert reader.policy.ahead_bytes == 0


def test_a_changed_directory_starts_anew() -> None:
    names = names_of(100)
    reader = Reader()
    reader.read(names[:20], names)
    reader.policy.forget(1)
    assert reader.policy.ahead_bytes == 0
    reader.staged.clear()
    assert reader.read(names, names) == 92


@pytest.mark.slow
def test_a_thousand_directories_of_a_random_epoch_stay_small() -> None:
    listing = names_of(1280)
    policy = Siblings(8 * MB, budget_bytes=256 * MB)
    rng = random.Random(2)
    for i in range(20_000):
        if policy.opened(rng.randrange(1000), rng.choice(listing), SIZE, i * 0.001, staged=False):
            policy.listed(0, [], 0.0)  # lists nothing: only the watching is measured here
    assert len(policy._watched) <= 1000
    assert all(len(recent) <= 8 for recent in policy._watched.values())
    for directory in range(1000):
        for name in listing[:8]:
            policy.opened(directory, name, SIZE, 100.0, staged=False)
        policy.listed(directory, listing[:400], 100.0)
    assert policy.directories == 750, "no more than 300 000 names are held"


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "open", "next", "admit", "drop", "later", "forget"]),
        st.integers(0, 2),
        st.integers(0, 39),
        st.integers(0, 300_000),
    ),
    max_size=120,
)


@given(CALLS)
def test_the_budget_holds_whatever_happens(calls: list[tuple[str, int, int, int]]) -> None:
    listing = [b"%02d" % i for i in range(40)]
    policy = Siblings(200_000, budget_bytes=1 * MB)
    now_s = 0.0
    for directory in range(3):
        for name in listing[:8]:
            policy.opened(directory, name, 50_000, now_s, staged=False)
        policy.listed(directory, listing if directory else listing[::-1], now_s)
    seen: set[tuple[int, bytes]] = set()
    used = 3 * 8 * 50_000
    for call, directory, number, size in calls:
        if call == "open":
            policy.opened(directory, listing[number], size, now_s, staged=bool(size % 2))
            used += size
        elif call == "next":
            found = policy.next(number, now_s)
            assert len(found) <= number
            assert not seen & set(found)
            seen |= set(found)
        elif call == "admit":
            if policy.admit(directory, listing[number], size):
                assert (directory, listing[number]) in seen
                assert 0 < size <= 200_000
        elif call == "drop":
            policy.drop(directory, listing[number])
        elif call == "later":
            now_s += size / 1000
        else:
            policy.forget(directory)
        held = [charge for d in policy._active.values() for charge, _, _ in d.ahead.values()]
        assert policy.ahead_bytes == sum(held) <= MB + 4 * used
        assert policy._charged_bytes == sum(d.charged_bytes for d in policy._active.values()) <= MB + 4 * used
        for found in policy._active.values():
            assert found.ahead_bytes == sum(charge for charge, _, _ in found.ahead.values())
            assert found.charged_bytes == max(0, found.ahead_bytes - found.allowance_bytes)
        assert policy._names_held == sum(len(d) for d in policy._active.values())
