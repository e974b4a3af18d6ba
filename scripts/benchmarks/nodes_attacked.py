"""Rows of strangers at the port of a node: its memory, and whether its true peers are served meanwhile."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import BenchError, Work, process_memory, reader
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import PORT, digests, learners, nodes
from scripts.benchmarks.nodes_data import mixed
from scripts.benchmarks.nodes_killed import check
from scripts.benchmarks.nodes_network import network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

ATTACKS: Mapping[str, tuple[str, int, int]] = {
    "secret": ("200 sockets with another secret, for 5 s", 200, 200),
    "release": ("50 daemons of another release that say hello, for 5 s", 50, 50),
    "loris": ("500 connections that say a byte every 0.1 s", 500, 500),
    "open": ("5 000 connections open at a time", 5000, 500),
    "garbage": ("100 000 connections of garbage one after the other", 100_000, 5000),
}
"""What it is for people, and how often; the same of a quick run."""
MOST_MB = 50
SLOWEST_S = 1.0
"""A read from a peer takes milliseconds; strangers use one of the two cores meanwhile."""


def attacked(work: Work, options: Options, command: str) -> list[Row]:
    return _rows(work, options, command, [how for how in ATTACKS if how != "garbage"])


def garbage(work: Work, options: Options, command: str) -> list[Row]:
    return _rows(work, options, command, ["garbage"])


def _rows(work: Work, options: Options, command: str, attacks: Sequence[str]) -> list[Row]:
    """Two nodes; one is attacked by a third machine while the other reads from it, epoch after epoch."""
    if (reason := why_not()) is not None:
        return [skipped_row("strangers at a node's port", reason, command)]
    got, folder = Results(command), mixed(work, options)
    expected = digests(work, folder)
    for _ in range(options.runs):
        for how in attacks:
            _words, count, count_quick = ATTACKS[how]
            with got.attempt(*(f"{how} {figure}" for figure in ("memory", "failed", "slowest", "gone"))):
                _one(work, got, how, options.size(count, count_quick), folder, expected)
    rows = []
    for how in attacks:
        words, count, count_quick = ATTACKS[how]
        rows += [
            got.row(
                f"{words}{options.scale(count, count_quick)}: memory of the daemon more",
                f"{how} memory",
                at_most(MOST_MB),
                "MB",
            ),
            got.row("  failed reads and wrong files of its true peer meanwhile", f"{how} failed", at_most(0), ""),
            got.row("  its slowest read", f"{how} slowest", at_most(SLOWEST_S), "s"),
            got.row("  members that were lost for it", f"{how} gone", at_most(0), ""),
        ]
    return rows


def _one(work: Work, got: Results, how: str, count: int, folder: Path, expected: Path) -> None:
    with network(3) as net, nodes(work, net, folder) as running:
        running.start((0, 1))
        stranger = (net.address(0), PORT, running.secret)
        with (
            learners(running, expected, [1]) as group,
            reader("attack.py", *stranger, within=net.within(2)) as program,
        ):
            faults, slowest_s = [0, 0], [0.0]
            add(faults, slowest_s, group.epoch(seed=0, all=True))
            slowest_s = [0.0]
            running.until_settled()
            pid = running.pid(0)
            before = process_memory(pid)[0]
            over, errors = threading.Event(), list[str]()

            def attack() -> None:
                try:
                    program.do(how=how, count=count)
                except BenchError as error:
                    errors.append(str(error))
                over.set()

            thread = threading.Thread(target=attack)
            thread.start()
            epochs = 0
            while not over.is_set() or not epochs:
                epochs += 1
                add(faults, slowest_s, group.epoch(seed=epochs, all=True))
            thread.join()
            if errors:
                raise BenchError(errors[0])
            add(faults, slowest_s, group.epoch(seed=epochs + 1, all=True))
            memory = process_memory(pid)[0] - before
            gone = sum(len(running.status(number)["peers"]["gone"]) for number in (0, 1))
            program.do(how="close")
    got.add(f"{how} memory", memory / 1e6)
    got.add(f"{how} failed", sum(faults))
    got.add(f"{how} slowest", max(slowest_s))
    got.add(f"{how} gone", gone)


def add(faults: list[int], slowest_s: list[float], answers: list[dict[str, Any]]) -> None:
    failed, wrong = check(answers)
    faults[0] += failed
    faults[1] += wrong
    slowest_s.append(max(answer["slowest_s"] for answer in answers))
