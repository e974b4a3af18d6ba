"""Rows of one large file that all nodes of a job read at once: how many reads the storage sees, and in what order.

All nodes begin at its front, and each reads from the source what it owns: without read slots as many chunks at a time
as all of them together may, with read slots (`-o stagger-job`) as many as are given.
"""

from scripts.benchmarks.common import Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_data import ONE, ONE_QUICK, one_large
from scripts.benchmarks.peers_epochs import READ_ONCE
from scripts.benchmarks.peers_nodes import learners, nodes
from scripts.benchmarks.table import Row, at_least, at_most

COUNT = 4
SLOTS = 2
FREE = 1024
"""More than all nodes read at a time: they do not ask."""

SHARED_BPS = 8_000_000
"""Eight seconds for the file: what several nodes on two cores need for themselves does not show."""

MEMORY = "64M"
"""Readahead of 16 chunks."""

_BESIDES = 1
"""A stat or an open of somebody else's may be under way beside the reads."""


def stagger(work: Work, options: Options, command: str) -> list[Row]:
    got, data = Results(command), one_large(work, options)
    kinds = {"slots": SLOTS, "free": FREE}
    for seed in range(options.runs):
        for kind, slots in kinds.items():
            keys = [f"{kind} {what}" for what in ("source", "at once", "ordered", "epoch")]
            with got.attempt(*keys), slowfs(work, data.folder, "none") as slow:
                slow.tell(f"set shared_bps {SHARED_BPS}")
                slot_options = ("-o", f"stagger-job={slots}")
                with (
                    nodes(work, slow, COUNT, "partition", memory=MEMORY, options=slot_options) as running,
                    learners(running.paths, data) as group,
                ):
                    slow.tell("reset")
                    epoch_s, _ = group.epoch(how="all", seed=seed, batch=COUNT)
                    found = slow.counters()
                    got.add(f"{kind} source", found["read_bytes"] / data.bytes)
                    got.add(f"{kind} at once", found["in_flight_max"])
                    got.add(f"{kind} ordered", found["read_ordered"] / max(1, found["read"]))
                    got.add(f"{kind} epoch", epoch_s)
            if kind == "free":
                got.add("longer", got.last("slots epoch") / got.last("free epoch"))
    scale = options.scale(ONE, ONE_QUICK)
    what = f"{COUNT} nodes read one file of {data.bytes >> 20} chunks{scale}, partition, stagger-job={SLOTS}"
    return [
        got.row(f"{what}: requests at the source at a time, at most", "slots at once", at_most(SLOTS + _BESIDES), ""),
        got.row("  without read slots", "free at once", unit=""),
        got.row(f"{what}: share of reads in the order of the file", "slots ordered", at_least(0.75), ""),
        got.row("  without read slots", "free ordered", unit=""),
        got.row(f"{what}: source bytes / data set", "slots source", READ_ONCE),
        got.row(f"{what}: time, as multiple of that without read slots", "longer", at_most(1.1)),
        got.row("  with read slots", "slots epoch", unit="s"),
    ]
