"""Rows of links that delay, lose or are cut, in one direction or both, in the middle of an epoch."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from scripts.benchmarks.common import Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import SETTINGS, digests, learners, nodes
from scripts.benchmarks.nodes_data import SMALL, SMALL_QUICK, mixed
from scripts.benchmarks.nodes_killed import LASTS_S, THREADS, check
from scripts.benchmarks.nodes_network import Network, network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

COUNT = 4
TIMEOUT_S = 3.0
CUT_S = 20.0
_OTHERS = range(1, COUNT)


def _delay(net: Network) -> None:
    net.faults(delay_s=0.001, loss=0.01)


def _cut(net: Network) -> None:
    _cut_for(net, [[0, other] for other in _OTHERS] + [[other, 0] for other in _OTHERS])


def _one_way(net: Network) -> None:
    """Nobody hears node 0, which hears all."""
    _cut_for(net, [[0, other] for other in _OTHERS])


def _cut_for(net: Network, pairs: Sequence[Sequence[int]]) -> None:
    time.sleep(LASTS_S / 5)
    net.faults(cut=pairs)
    time.sleep(CUT_S)
    net.faults(cut=[])


FAULTS: dict[str, tuple[str, Callable[[Network], None]]] = {
    "delay": ("1 ms delay, 1 % loss", _delay),
    "cut": (f"a node's link is cut for {CUT_S:g} s", _cut),
    "one-way": (f"a node is not heard for {CUT_S:g} s", _one_way),
}


def links(work: Work, options: Options, command: str) -> list[Row]:
    """An epoch of four nodes that have all, with each fault."""
    if (reason := why_not()) is not None:
        return [skipped_row("links that fail", reason, command)]
    got, folder = Results(command), mixed(work, options)
    expected = digests(work, folder)
    files = options.size(SMALL, SMALL_QUICK)

    def add(what: str, answers: list[dict[str, Any]]) -> None:
        failed, wrong = check(answers)
        got.add(f"{what} wrong", wrong)
        got.add(f"{what} failed", failed)
        got.add(f"{what} slowest", max(answer["slowest_s"] for answer in answers))

    for seed in range(options.runs):
        for what, (_, fault) in FAULTS.items():
            with (
                got.attempt(*(f"{what} {figure}" for figure in ("wrong", "failed", "slowest"))),
                slowfs(work, folder, "none") as slow,
                network(COUNT, relayed=True) as net,
                nodes(work, net, slow, settings=f"{SETTINGS},peer-timeout={TIMEOUT_S:g}") as running,
            ):
                running.start(range(COUNT))
                with learners(running, expected) as group:
                    group.epoch(seed=seed)
                    running.until_settled()
                    lasts = {"seed": seed + 1, "prepare_s": (LASTS_S + CUT_S) * THREADS * COUNT / files}
                    group.begin(**lasts)
                    fault(net)
                    add(what, group.end())
    rows = []
    for what, (words, _) in FAULTS.items():
        rows += [
            got.row(
                f"{COUNT} nodes, {words}{options.scale(SMALL, SMALL_QUICK)}: wrong files",
                f"{what} wrong",
                at_most(0),
                "",
            ),
            got.row("  failed reads", f"{what} failed", at_most(0), ""),
            got.row(f"  slowest read, peer-timeout {TIMEOUT_S:g} s", f"{what} slowest", at_most(TIMEOUT_S + 1), "s"),
        ]
    return rows
