"""Rows of a job that grows by a node and shrinks again: how much moves between nodes, and what the source is asked."""

from scripts.benchmarks.common import HFS, Work, run, slowfs
from scripts.benchmarks.data import tree_bytes
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import Nodes, digests, learners, nodes
from scripts.benchmarks.nodes_data import SMALL, SMALL_QUICK, mixed
from scripts.benchmarks.nodes_killed import check
from scripts.benchmarks.nodes_network import network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

COUNT = 4
SHARE = 0.22
"""A fifth, and what a hash strays from it."""


def _warmed(running: Nodes) -> int:
    """Have each node stage its share; how many bytes nodes have given each other for that."""
    before = {number: running.counter("peer_read_bytes", number) for number in running.mounts}
    for number in running.mounts:
        run(HFS, "cache", "warm", running.mounts[number].path)
    running.until_settled()
    return sum(running.counter("peer_read_bytes", number) - had for number, had in before.items())


def grow(work: Work, options: Options, command: str) -> list[Row]:
    """Four nodes, a fifth, and four again."""
    if (reason := why_not()) is not None:
        return [skipped_row("4 to 5 nodes and back", reason, command)]
    got, folder = Results(command), mixed(work, options)
    size, expected = tree_bytes(folder)[1], digests(work, folder)
    for _ in range(options.runs):
        with (
            got.attempt("join", "leave", "source", "wrong", "known"),
            slowfs(work, folder, "none") as slow,
            network(COUNT + 1) as net,
            nodes(work, net, slow) as running,
        ):
            running.start(range(COUNT))
            _warmed(running)
            before = running.source_bytes()
            running.start([COUNT], among=[0])

            def know(count: int) -> bool:
                peers = [running.status(number)["peers"] for number in running.mounts]
                return all(each["nodes"] - len(each["gone"]) == count for each in peers)

            got.add("known", running.until(lambda: know(COUNT + 1), "all know the fifth"))
            got.add("join", _warmed(running) / size)
            with learners(running, expected) as group:
                faults = check(group.epoch(seed=1))
            running.stop(COUNT)
            running.until(lambda: know(COUNT), "all know that the fifth has left")
            got.add("leave", _warmed(running) / size)
            with learners(running, expected) as group:
                faults = tuple(map(sum, zip(faults, check(group.epoch(seed=2)), strict=True)))
            got.add("wrong", sum(faults))
            got.add("source", (running.source_bytes() - before) / size)
    what = f"{COUNT} nodes become {COUNT + 1}{options.scale(SMALL, SMALL_QUICK)}"
    return [
        got.row(f"{what}: bytes that move between nodes / data", "join", at_most(SHARE)),
        got.row(f"  and {COUNT} again", "leave", at_most(SHARE)),
        got.row("  source bytes of both / data", "source", at_most(0)),
        got.row("  failed reads and wrong files of the epochs after each", "wrong", at_most(0), ""),
        got.row("  once the new one is mounted, until all know it", "known", None, "s"),
    ]
