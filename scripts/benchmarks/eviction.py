"""`scripts/bench eviction`: what each way of evicting gets out of a cache that is smaller than the data. A simulation.

Hit ratios against the cache's size, for LRU, fill-once, the daemon with hints and Belady's MIN, under three kinds of
epochs; and what fetching ahead and evicting in batches cost against MIN. Epochs before all have settled do not count.

Where every file is read once an epoch in an order of its own, nothing is above fill-once: each hit is a file that was
kept from its use in one epoch to its use in the next, all of these are kept at the boundary between the two, and there
are no more of them than the cache holds. To know the order pays where an epoch reads only a part of the files (one node
of several), or some of them twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.benchmarks import eviction_simulation as simulation
from scripts.benchmarks.common import Work
from scripts.benchmarks.eviction_simulation import Orders
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least, at_most, median_row

RUNS = 1

FILES, FILES_QUICK = 2000, 800
SIZES = (5, 10, 25, 50, 75, 90, 100)
"""Cache in per cent of the data."""
WINDOW_PERCENT, BATCH_PERCENT = 2, 1
"""Of the cache: what the daemon keeps ahead, and what it evicts at a time (mountd/hints/space_reservation.py)."""
WINDOWS = (1, 2, 5, 10)
BATCHES = (0, 1, 2)
COST_SIZE = 25
ABOVE = 0.1
"""Points that count as above."""


@dataclass(frozen=True)
class Kind:
    """A kind of epochs: how they are drawn (files, seed), and how many go by before they count."""

    what: str
    draw: Callable[[int, int], Orders]
    settle: int

    def hits(self, orders: Orders, misses: list[int]) -> float:
        """Hit ratio of the epochs that count, in per cent."""
        return 100 * (1 - sum(misses[self.settle :]) / sum(len(order) for order in orders[self.settle :]))


ONCE = Kind("every file once an epoch", lambda files, seed: simulation.epochs(files, 4, seed), 1)
ONE_NODE = Kind("one node of 4", lambda files, seed: simulation.epochs_of_one_node(files, 4, 20, seed), 10)
REPLACED = Kind("drawn with replacement", lambda files, seed: simulation.epochs_with_replacement(files, 6, seed), 3)

POLICIES = ("LRU", "fill-once", "hinted", "MIN", "MIN that keeps all it reads")


def hit_percents(kind: Kind, files: int, size: int, seed: int) -> dict[str, float]:
    """Hit ratio in per cent of each of POLICIES with a cache of `size` per cent."""
    orders = kind.draw(files, seed)
    capacity = files * size // 100
    misses = (
        simulation.unhinted(orders, capacity, "lru"),
        simulation.unhinted(orders, capacity, "fill-once"),
        simulation.hinted(
            orders, files, capacity, window=capacity * WINDOW_PERCENT // 100, batch=capacity * BATCH_PERCENT // 100
        ),
        simulation.least(orders, capacity, bypass=True),
        simulation.least(orders, capacity, bypass=False),
    )
    return {name: kind.hits(orders, missed) for name, missed in zip(POLICIES, misses, strict=True)}


def hits(_: Work, options: Options, command: str) -> list[Row]:
    files = options.size(FILES, FILES_QUICK)
    rows = []
    for kind in (ONCE, ONE_NODE, REPLACED):
        what = f"{kind.what}{options.scale(FILES, FILES_QUICK)}"
        runs = [{size: hit_percents(kind, files, size, seed) for size in SIZES} for seed in range(options.runs)]
        for size in SIZES:
            first = runs[0][size]
            others = ", ".join(f"{name} {first[name]:.1f}" for name in POLICIES if name != "hinted")
            name = f"{what}, cache {size} %: hits with a hint ({others})"
            rows.append(median_row(name, [run[size]["hinted"] for run in runs], "%", command))
        for name, bar, of in _promises(kind):
            rows.append(median_row(f"{what}: {name}", [of(run) for run in runs], "points", command, bar))
    return rows


Run = dict[int, dict[str, float]]


def _promises(kind: Kind) -> list[tuple[str, Bar, Callable[[Run], float]]]:
    """What must hold of one run, over all sizes; where everything fits (100 %) all are the same."""
    smaller = [size for size in SIZES if size < 100]
    if kind is ONCE:
        return [
            (
                "fill-once is not the cache's share of the data by at most",
                at_most(1),
                lambda run: max(abs(run[size]["fill-once"] - size) for size in SIZES),
            ),
            (
                "what MIN, which knows all, has above fill-once",
                at_most(1),
                lambda run: max(run[size]["MIN"] - run[size]["fill-once"] for size in SIZES),
            ),
            (
                "with a hint above fill-once (not below), at least",
                at_least(-0.5),
                lambda run: min(run[size]["hinted"] - run[size]["fill-once"] for size in SIZES),
            ),
            (
                "with a hint above LRU at every size, at least",
                at_least(ABOVE),
                lambda run: min(run[size]["hinted"] - run[size]["LRU"] for size in smaller),
            ),
        ]
    promises: list[tuple[str, Bar, Callable[[Run], float]]] = []
    for name in ("MIN", "hinted"):

        def above(run: Run, name: str = name) -> float:
            return min(run[size][name] - max(run[size]["fill-once"], run[size]["LRU"]) for size in smaller)

        promises.append((f"{name} above fill-once and LRU at every size, at least", at_least(ABOVE), above))
    return promises


def cost(_: Work, options: Options, command: str) -> list[Row]:
    """Source reads over those of MIN with a quarter of the data cached, for windows and batches in per cent of it."""
    files = options.size(FILES, FILES_QUICK)
    capacity = files * COST_SIZE // 100
    rows = []
    for kind in (ONCE, REPLACED):
        what = f"{kind.what}, cache {COST_SIZE} %{options.scale(FILES, FILES_QUICK)}"
        for window in WINDOWS:
            for batch in BATCHES:
                ratios = []
                for seed in range(options.runs):
                    orders = kind.draw(files, seed)
                    missed = simulation.hinted(
                        orders, files, capacity, window=capacity * window // 100, batch=max(1, capacity * batch // 100)
                    )
                    least = simulation.least(orders, capacity, bypass=True)
                    ratios.append(sum(missed[kind.settle :]) / sum(least[kind.settle :]))
                bar = at_most(1.05) if (window, batch) == (WINDOW_PERCENT, BATCH_PERCENT) else None
                name = f"{what}: {window} % ahead, {f'{batch} %' if batch else 'one'} evicted at a time: reads / MIN's"
                rows.append(median_row(name, ratios, "x", command, bar))
    return rows


GROUPS = {"hits": hits, "cost": cost}
