"""An order that repeats is recognised behind loader workers and between random epochs; a random one never is."""

from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

from policies.schedule import repetition
from policies.schedule.repetition import MAX_ITEMS, Repetition


def loaded(order: list[int], workers: int, batch: int, random: Random) -> list[int]:
    """The opens of loader workers: whole batches in turn, two ahead each, mixed as it happens."""
    batches = -(-len(order) // batch)
    theirs = [
        [i for b in range(w, batches, workers) for i in order[b * batch : b * batch + batch]] for w in range(workers)
    ]
    done = [0] * workers
    opens: list[int] = []
    consumed = 0
    while len(opens) < len(order):
        free = [
            w
            for w in range(workers)
            if done[w] < len(theirs[w]) and done[w] // batch * workers + w < consumed + 2 * workers
        ]
        w = random.choice(free)
        opens.append(theirs[w][done[w]])
        done[w] += 1
        while consumed < batches:
            w = consumed % workers
            if done[w] < min(len(theirs[w]), (consumed // workers + 1) * batch):
                break
            consumed += 1
    return opens


def told(opens: Iterable[int], to: Repetition) -> list[tuple[int, int]]:
    """(opens so far, passes recognised so far) at every open of a pass that is followed."""
    followed = []
    for number, item in enumerate(opens, 1):
        to.observe(item)
        if to.following:
            followed.append((number, to.passes))
    return followed


WORKERS = [(1, 32), (4, 32), (8, 128)]


@pytest.mark.parametrize(("workers", "batch"), WORKERS)
def test_unshuffled_epochs_are_recognised_from_the_second_on(workers: int, batch: int) -> None:
    random = Random(1)
    order = random.sample(range(20_000), 20_000)
    watch = Repetition()
    assert told(loaded(order, workers, batch, random), watch) == []
    for epoch in (1, 2):
        followed = told(loaded(order, workers, batch, random), watch)
        # At first what is left of the pass before.
        followed = [(number, passes) for number, passes in followed if number > 128 or passes == epoch]
        assert {passes for _, passes in followed} == {epoch}
        assert len(followed) >= 0.9 * len(order)
        assert followed[-1][0] - followed[0][0] == len(followed) - 1


@pytest.mark.parametrize(("workers", "batch"), WORKERS)
def test_validation_is_recognised_between_random_training_epochs(workers: int, batch: int) -> None:
    random = Random(2)
    train, validation = range(10_000), list(range(10_000, 15_000))
    watch = Repetition()
    for epoch in range(4):
        followed = told(loaded(random.sample(train, len(train)), workers, batch, random), watch)
        assert all(number <= 256 for number, _ in followed)  # what is left of the validation before
        followed = told(loaded(validation, workers, batch, random), watch)
        assert watch.passes == epoch
        assert bool(followed) == bool(epoch)
        assert len(followed) >= (0.75 * len(validation) if epoch else 0)


@pytest.mark.parametrize(("workers", "batch"), WORKERS)
def test_what_comes_is_foreseen_in_order_and_the_position_is_known(workers: int, batch: int) -> None:
    random = Random(3)
    order = [3 * i for i in random.sample(range(6000), 6000)]
    watch = Repetition()
    told(loaded(order, workers, batch, random), watch)
    opens = loaded(order, workers, batch, random)
    begun = told(opens, watch)[0][0]
    again = Repetition()
    for item in loaded(order, workers, batch, Random(3)):
        again.observe(item)
    rest = set(order)
    for number, item in enumerate(opens, 1):  # noqa: B007 - read after the loop
        again.observe(item)
        rest.discard(item)
        if again.following:
            break
    assert number >= 64
    assert abs(begun - number) < 1000
    # All that comes, each once, roughly as the first pass had it.
    assert sorted(again.order.tolist()) == sorted(rest)
    places = np.argsort(np.argsort([order.index(item) for item in again.order.tolist()]))
    apart = workers * batch
    assert np.abs(places - np.arange(len(places))).max() <= 2 * apart
    behind = number
    last = 0
    for number, item in enumerate(opens[behind:], behind + 1):
        again.observe(item)
        if not again.following:
            break
        assert again.position >= last
        last = again.position
        assert abs(last - (number - behind)) <= 2 * apart + 128
    assert number >= len(opens) - 64
    assert last >= 0.9 * (len(order) - behind)


def test_a_pass_that_goes_another_way_is_followed_no_longer_until_it_is_proven_again() -> None:
    random = Random(4)
    order = list(range(10_000))
    watch = Repetition()
    told(order, watch)
    assert told(order[:4000], watch)[-1] == (4000, 1)
    other = random.sample(order[4000:], 6000)
    followed = told(other[:3000], watch)
    assert 64 <= len(followed) <= 192
    assert watch.order.size == watch.position == 0
    told(other[3000:], watch)
    # The next pass has half of the record: the other half was random.
    followed = told(order[:4000], watch)
    assert followed[0][0] < 500
    assert watch.passes == 2


def test_it_is_proven_anew_each_time() -> None:
    order = list(range(10_000))
    watch = Repetition()
    told(order, watch)
    told(order[:4000], watch)
    followed = told([*range(20_000, 20_192), *order[4000:8000]], watch)
    assert watch.passes == 2
    assert next(number for number, passes in followed if passes == 2) >= 192 + 192


def test_what_has_little_left_is_not_followed() -> None:
    watch = Repetition()
    told(range(5000), watch)
    assert told(range(4600, 5000), watch) == []


def test_some_strange_opens_do_no_harm() -> None:
    random = Random(5)
    order = list(range(10_000))
    watch = Repetition()
    told(order, watch)
    strange = iter(range(10_000, 20_000))
    mixed = [item for i in order for item in ([i, next(strange)] if random.random() < 0.15 else [i])]
    followed = told(mixed, watch)
    assert watch.passes == 1
    assert len(followed) > 0.9 * len(mixed)


def random_epochs(kind: str, files: range, random: Random) -> list[int]:
    drawn = random.sample(files, len(files))
    match kind:
        case "once":
            return drawn
        case "a half":
            return drawn[: len(drawn) // 2]
        case "with replacement":
            return random.choices(files, k=len(files))
        case "padded":
            return drawn + drawn[:7]
        case "opened again soon":
            return [drawn[n - m] for n in range(len(drawn)) for m in range(0, 54, 9) if n >= m]
        case _:
            # By two processes that are 100 files apart.
            return [i for n in range(len(drawn) + 100) for m in (n, n - 100) if 0 <= m < len(drawn) for i in [drawn[m]]]


KINDS = ["once", "a half", "with replacement", "padded", "opened again soon"]


@pytest.mark.parametrize(
    ("kind", "sets"),
    [
        *[
            (kind, sets)
            for kind in KINDS
            for sets in [(64,), (300, 130, 100), (300, 100, 64), (1000, 500), (5000, 200, 500)]
        ],
        *[("opened twice, far apart", sets) for sets in [(64,), (600,), (5000,)]],
    ],
)
def test_random_orders_are_never_recognised(kind: str, sets: tuple[int, ...]) -> None:
    """Of one set or several that are read in turn, where the places of one are above those of the other."""
    random = Random(6)
    watch = Repetition()
    opens = 0
    while opens < 60_000:
        first = 0
        for size in sets:
            drawn = random_epochs(kind, range(first, first + size), random)
            first += size
            opens += len(drawn)
            assert told(drawn, watch) == []


@pytest.mark.parametrize(("sets", "bound"), [((600,), 0.6), ((300, 130, 100), 0.8)])
def test_random_orders_stay_far_below_the_proof(sets: tuple[int, ...], bound: float) -> None:
    """The largest sum of 300 epochs at any lag, as a part of its limit: most where small sets are read in turn."""
    random = Random(111)
    watch = Repetition()
    largest = 0.0
    for _ in range(300):
        first = 0
        for size in sets:
            told(random.sample(range(first, first + size), size), watch)
            first += size
            limits = [
                repetition._PROOF_LAGS * (lag + 1) * repetition._BLOCK * repetition._AGREES for lag in repetition._LAGS
            ]
            largest = max(largest, *(s / limit for s, limit in zip(watch._sums, limits, strict=True)))
    assert watch.passes == 0
    assert largest < bound


def test_many_passes_wrap_around() -> None:
    watch = Repetition()
    for _ in range(2 * repetition._GENERATIONS + 10):
        told(range(700), watch)
    assert watch.passes >= 1.5 * repetition._GENERATIONS
    assert max(watch._entries) <= 700


def test_memory_is_bounded() -> None:
    watch = Repetition()
    told([MAX_ITEMS, MAX_ITEMS + 5, 10**12], watch)
    assert len(watch._records) == 1024
    told([MAX_ITEMS - 1], watch)
    assert watch._records.nbytes == 4 * MAX_ITEMS
    watch = Repetition()
    for _ in range(3):
        told(range(100_000), watch)
    assert watch.following
    assert watch._records.nbytes + watch.order.nbytes < 1.5 * 8 * 100_000
    assert len(watch._medians) <= repetition._LAGS[-1] + 1
