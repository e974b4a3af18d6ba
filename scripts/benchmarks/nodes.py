"""`scripts/bench nodes`: nodes that come and go share their caches over ZeroMQ; each is a network of its own.

Only the list of the groups of rows; `scripts/bench nodes --only GROUP` measures one. All nodes share the cores of one
machine: bytes and ratios mean something, seconds of a whole job do not.
"""

from collections.abc import Callable

from scripts.benchmarks import (
    nodes_attacked,
    nodes_grow,
    nodes_killed,
    nodes_links,
    nodes_many,
    nodes_rates,
    nodes_small,
)
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 1

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "killed": nodes_killed.one,
    "each-killed": nodes_killed.each,
    "grow": nodes_grow.grow,
    "links": nodes_links.links,
    "attacked": nodes_attacked.attacked,
    "garbage": nodes_attacked.garbage,
    "rates": nodes_rates.rates,
    "many": nodes_many.many,
    "small": nodes_small.small,
}
