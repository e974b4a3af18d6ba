"""`scripts/bench lmdbio`: one LMDB of small records that several processes read at random, and LMDBIO's six steps.

Only the list of the groups of rows; `scripts/bench lmdbio --only GROUP` measures one. Ratios are taken within a run.
"""

from collections.abc import Callable

from scripts.benchmarks import lmdbio_ladder, lmdbio_layout, lmdbio_mount
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 3

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "readahead": lmdbio_mount.readahead,
    "random": lmdbio_mount.random,
    "random-8": lmdbio_mount.random_8,
    "random-lustre": lmdbio_mount.random_lustre,
    "layout": lmdbio_layout.layout,
    "ladder": lmdbio_ladder.ladder,
    "ladder-lustre": lmdbio_ladder.ladder_lustre,
}
