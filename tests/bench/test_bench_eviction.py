"""The parts of `scripts/bench eviction`: that its simulations are what they say, at sizes of a moment."""

import numpy as np
import pytest

from hfs.mountd.hints import space_reservation as hints_room
from scripts.benchmarks import eviction
from scripts.benchmarks import eviction_simulation as simulation
from scripts.benchmarks.async_io_belady_bound import least_source_bytes

FILES = 200
KINDS = [
    simulation.epochs(FILES, 4, 0),
    simulation.epochs_of_one_node(FILES, 4, 8, 0),
    simulation.epochs_with_replacement(FILES, 4, 0),
]


def test_the_orders_are_what_they_are_called() -> None:
    once, node, replaced = KINDS
    assert all(sorted(order.tolist()) == list(range(FILES)) for order in once)
    assert all(len(order) == len(set(order.tolist())) == FILES // 4 for order in node)
    assert all(len(order) == FILES > len(set(order.tolist())) for order in replaced)


@pytest.mark.parametrize("orders", KINDS)
@pytest.mark.parametrize("capacity", [1, 20, 100, 199, 200])
def test_min_is_the_least(orders: simulation.Orders, capacity: int) -> None:
    least = simulation.least(orders, capacity, bypass=True)
    every = [order.astype(np.int64) for order in orders]
    assert sum(least) == sum(least_source_bytes(every, np.ones(FILES, np.int64), capacity))
    others = [
        simulation.least(orders, capacity, bypass=False),
        simulation.unhinted(orders, capacity, "lru"),
        simulation.unhinted(orders, capacity, "fill-once"),
    ]
    assert all(sum(least) <= sum(other) for other in others)
    if capacity == FILES:
        assert all(other == least for other in others)


def test_lru_and_fill_once_by_hand() -> None:
    orders = [np.array(order, np.int32) for order in ([0, 1, 2], [2, 1, 0])]
    assert simulation.unhinted(orders, 2, "lru") == [3, 1]
    assert simulation.unhinted(orders, 2, "fill-once") == [3, 1]
    orders = [np.array(order, np.int32) for order in ([0, 1, 2], [0, 1, 2])]
    assert simulation.unhinted(orders, 2, "lru") == [3, 3]
    assert simulation.unhinted(orders, 2, "fill-once") == [3, 1]
    assert simulation.least(orders, 2, bypass=True) == [3, 1]
    assert simulation.least(orders, 2, bypass=False) == [3, 1]


@pytest.mark.parametrize("orders", KINDS)
@pytest.mark.parametrize("capacity", [20, 100])
def test_hinted_reads_every_use_at_least_as_often_as_a_cache_of_that_and_the_window(
    orders: simulation.Orders, capacity: int
) -> None:
    missed = simulation.hinted(orders, FILES, capacity, window=8, batch=1)
    assert sum(missed) >= sum(simulation.least(orders, capacity + 3 * simulation.STEP_SAMPLES, bypass=True))
    assert sum(missed) < sum(simulation.unhinted(orders, capacity, "lru"))


def test_it_measures_what_the_daemon_does() -> None:
    assert 100 / hints_room._WINDOW_SHARE == eviction.WINDOW_PERCENT
    assert 100 / hints_room._BATCH_SHARE == eviction.BATCH_PERCENT
