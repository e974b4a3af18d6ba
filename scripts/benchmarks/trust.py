"""`scripts/bench trust`: what hfs promises, under attack: damage, kills, faults, shortage.

Only the list of the groups of rows; `scripts/bench trust --only GROUP` measures one.
"""

from collections.abc import Callable

from scripts.benchmarks import trust_faults, trust_kills, trust_small, trust_soak
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 1

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "faults": trust_faults.faults,
    "kills": trust_kills.kills,
    "small": trust_small.small,
    "soak": trust_soak.soak,
}
