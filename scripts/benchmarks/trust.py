"""`scripts/bench trust`: what hfs promises, under attack: damage, kills, faults, shortage.

Only the list of the groups of rows; `scripts/bench trust --only GROUP` measures one.
"""

from collections.abc import Callable
from functools import partial

from scripts.benchmarks import (
    trust_calls,
    trust_damage,
    trust_faults,
    trust_hung,
    trust_kills,
    trust_small,
    trust_soak,
    trust_turns,
    trust_verification,
)
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 1

GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "calls": trust_calls.calls,
    "faults": trust_faults.faults,
    "flips": trust_damage.flips,
    "hung": trust_hung.hung,
    "kills": partial(trust_kills.kills, "passthrough"),
    "kills-daemon": partial(trust_kills.kills, "daemon"),
    "kills-stateless": partial(trust_kills.kills, "stateless"),
    "scrub": trust_damage.scrub,
    "small": trust_small.small,
    "soak": trust_soak.soak,
    "turns": trust_turns.turns,
    "verification": trust_verification.verification,
}
