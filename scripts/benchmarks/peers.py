"""`scripts/bench peers`: the daemons of a job on one machine share what they have read, and learners stay local.

Only the list of the groups of rows; `scripts/bench peers --only GROUP` measures one. Eight daemons share the cores of
one machine: bytes and ratios mean something, seconds do not.
"""

from collections.abc import Callable

from scripts.benchmarks import peers_epochs, peers_idle, peers_killed, peers_model, peers_simulation, peers_stagger
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 1

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "simulation": peers_simulation.simulation,
    "planning": peers_simulation.planning,
    "source": peers_epochs.source,
    "first": peers_epochs.first,
    "shares": peers_epochs.shares,
    "stagger": peers_stagger.stagger,
    "idle": peers_idle.idle,
    "killed": peers_killed.killed,
    "model": peers_model.model,
}
