"""Rows of daemons of a job that have nothing to do: MPI has to be polled, and that must not cost a core."""

import time
from pathlib import Path

from scripts.benchmarks.common import Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_data import large
from scripts.benchmarks.peers_nodes import nodes
from scripts.benchmarks.table import Row, at_most

COUNT = 2
SETTLED_S = 5.0
"""The polls have become as rare as they will."""
FOR_S = 20.0


def _processor_s(pid: int) -> float:
    """What all threads of a process have had so far, in seconds: by the scheduler, since clock ticks miss polls."""
    stats = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(fields[0]) for fields in stats) / 1e9


def idle(work: Work, options: Options, command: str) -> list[Row]:
    got, data = Results(command), large(work, options)
    for _ in range(options.runs):
        with (
            got.attempt("percent"),
            slowfs(work, data.folder, "none") as slow,
            nodes(work, slow, COUNT, "partition") as running,
        ):
            pids = [int(running.status(rank)["pid"]) for rank in range(COUNT)]
            time.sleep(SETTLED_S)
            before = [_processor_s(pid) for pid in pids]
            time.sleep(FOR_S)
            spent = [after - then for after, then in zip(map(_processor_s, pids), before, strict=True)]
            got.add("percent", 100 * max(spent) / FOR_S)
    what = f"{COUNT} daemons that nobody reads through, for {FOR_S:g} s: the busier one's share of a core"
    return [got.row(what, "percent", at_most(1), "%")]
