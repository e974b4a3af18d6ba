"""Rows of a daemon that is killed in the middle of an epoch: the learners of the other nodes must not notice."""

import time
from typing import Any

from scripts.benchmarks.common import BenchError, Reader, Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_data import PICTURES, PICTURES_QUICK, pictures
from scripts.benchmarks.peers_epochs import fill
from scripts.benchmarks.peers_nodes import Nodes, learners, nodes
from scripts.benchmarks.table import Row, at_most

COUNT = 4
KILLED = 1
PREPARE_S = 0.02
"""Makes an epoch of some seconds, in which there is a middle."""
BEGUN = 0.2
"""The daemon is killed when so much of the data has come from peers."""
LIMIT_S = 60.0


def _kill_in_the_middle(running: Nodes, size: int) -> None:
    before = running.total("peer_read_bytes")
    limit = time.monotonic() + LIMIT_S
    while running.total("peer_read_bytes") < before + BEGUN * size:
        if time.monotonic() > limit:
            raise BenchError(f"in {LIMIT_S:g} s the nodes have not read {BEGUN:.0%} of the data from each other")
        time.sleep(0.02)
    running.kill(KILLED)


def _begin(readers: list[Reader], **request: Any) -> None:
    for one in readers:
        one.send(request)


def killed(work: Work, options: Options, command: str) -> list[Row]:
    got, data = Results(command), pictures(work, options)
    keys = ("failed", "own", "slowest", "again", "source")
    for seed in range(options.runs):
        with (
            got.attempt(*keys),
            slowfs(work, data.folder, "none") as slow,
            nodes(work, slow, COUNT, "partition") as running,
            learners(running.paths, data) as group,
        ):
            fill(running, group, data, seed)
            everyone = list(group.readers)
            others = [one for rank, one in enumerate(everyone) if rank != KILLED]
            _begin(everyone, how="regular", seed=seed + 1, batch=4 * COUNT, prepare_s=PREPARE_S)
            _kill_in_the_middle(running, data.bytes)
            before = slow.counters()["read_bytes"]
            answers = [one.answer() for one in everyone]
            mine = answers.pop(KILLED)
            got.add("failed", sum(answer["failed"] for answer in answers))
            got.add("own", mine["failed"])
            got.add("slowest", max(answer["slowest_s"] for answer in answers))
            _begin(others, how="all", seed=seed, batch=16 * COUNT)
            got.add("again", sum(one.answer()["failed"] for one in others))
            got.add("source", (slow.counters()["read_bytes"] - before) / data.bytes)
    what = f"{COUNT} nodes, partition, a daemon killed in mid-epoch{options.scale(PICTURES, PICTURES_QUICK)}"
    return [
        got.row(f"{what}: reads that fail on other nodes", "failed", at_most(0), ""),
        got.row("  on its own node", "own", unit=""),
        got.row("  slowest read of the others", "slowest", unit="s"),
        got.row(f"{what}: then each other node reads everything: reads that fail", "again", at_most(0), ""),
        got.row(f"  source bytes / data set since then (its share was 1/{COUNT})", "source"),
    ]
