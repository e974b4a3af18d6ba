"""Rows of daemons that are killed in the middle of epochs and started again: nobody's reads fail, and what their caches
hold is served again."""

import random
import threading
import time
from typing import Any

from scripts.benchmarks.common import BenchError, Work, slowfs
from scripts.benchmarks.data import tree_bytes
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import Nodes, digests, learners, nodes
from scripts.benchmarks.nodes_data import SMALL, SMALL_QUICK, mixed
from scripts.benchmarks.nodes_network import network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

SPARE = 0.02
"""Of the data, beside what fell to a node while it was away."""
EPOCHS = 3
LASTS_S = 15.0
"""An epoch, about, so that there is a middle: the learners prepare what they have read for so long."""
THREADS = 4


def prepare_s(files: int, count: int) -> float:
    """For a file, so that an epoch of `count` nodes lasts as long as it should."""
    return LASTS_S * THREADS * count / files


def check(answers: list[dict[str, Any]]) -> tuple[int, int]:
    """Failed reads and wrong files of all."""
    return sum(answer["failed"] for answer in answers), sum(answer["wrong"] for answer in answers)


def one(work: Work, options: Options, command: str) -> list[Row]:
    """Four nodes, one of which is killed in the middle of the second epoch."""
    if (reason := why_not()) is not None:
        return [skipped_row("4 nodes, one killed", reason, command)]
    got, folder, count = Results(command), mixed(work, options), 4
    files, size = tree_bytes(folder)
    expected = digests(work, folder)
    for seed in range(options.runs):
        with (
            got.attempt("again", "failed", "wrong", "source", "over", "epoch"),
            slowfs(work, folder, "none") as slow,
            network(count) as net,
            nodes(work, net, slow) as running,
        ):
            running.start(range(count))
            with learners(running, expected) as group:
                _checked(group.epoch(seed=seed))
                running.until_settled()
                before = running.source_bytes()
                begun_s = time.monotonic()
                group.begin(seed=seed + 1, prepare_s=prepare_s(files, count))
                time.sleep(LASTS_S / 4)
                again_s = running.until_served(seed % count)
                failed, wrong = check(group.end())
                epoch_s = time.monotonic() - begun_s
                source = (running.source_bytes() - before) / size
            got.add("again", again_s)
            got.add("failed", failed)
            got.add("wrong", wrong)
            got.add("epoch", epoch_s)
            got.add("source", source)
            got.add("over", source - again_s / epoch_s / count)
    what = f"{count} nodes, one killed with -9 mid-epoch{options.scale(SMALL, SMALL_QUICK)}"
    return [
        got.row(f"{what}: served again after", "again", at_most(5), "s"),
        got.row("  failed reads of all", "failed", at_most(0), ""),
        got.row("  files with a wrong byte", "wrong", at_most(0), ""),
        got.row("  source bytes after that / data, less share x downtime / epoch", "over", at_most(SPARE)),
        got.row("  source bytes after that / data", "source"),
        got.row("  the epoch", "epoch", unit="s"),
    ]


def _checked(answers: list[dict[str, Any]]) -> None:
    if check(answers) != (0, 0):
        raise BenchError(f"before anything was killed: {[answer['error'] for answer in answers]}")


def _kill_each(running: Nodes, order: list[int], away_s: list[float], faults: list[str]) -> None:
    """One after the other, evenly over most of all epochs."""
    try:
        for number in order:
            time.sleep(0.6 * EPOCHS * LASTS_S / len(order))
            away_s.append(running.until_served(number))
    except BenchError as error:
        faults.append(str(error))


def each(work: Work, options: Options, command: str) -> list[Row]:
    """Eight nodes, each killed once in random order while all train for three epochs."""
    if (reason := why_not()) is not None:
        return [skipped_row("8 nodes, each killed", reason, command)]
    got, folder, count = Results(command), mixed(work, options), 8
    files, size = tree_bytes(folder)
    expected = digests(work, folder)
    for seed in range(options.runs):
        with (
            got.attempt("failed", "wrong", "source", "over", "again", "epoch"),
            slowfs(work, folder, "none") as slow,
            network(count) as net,
            nodes(work, net, slow) as running,
        ):
            running.start(range(count))
            order = random.Random(seed).sample(range(count), count)
            away_s, faults = list[float](), list[str]()
            with learners(running, expected) as group:
                killer = threading.Thread(target=_kill_each, args=(running, order, away_s, faults))
                killer.start()
                begun_s, failed, wrong, epochs = time.monotonic(), 0, 0, 0
                while epochs < EPOCHS:
                    found = check(group.epoch(seed=seed + epochs, prepare_s=prepare_s(files, count)))
                    failed, wrong, epochs = failed + found[0], wrong + found[1], epochs + 1
                epoch_s = (time.monotonic() - begun_s) / EPOCHS
                killer.join()
            if faults or len(away_s) < count:
                raise BenchError(f"not all were killed: {faults}")
            source = running.source_bytes() / size
            got.add("failed", failed)
            got.add("wrong", wrong)
            got.add("again", max(away_s))
            got.add("epoch", epoch_s)
            got.add("source", source)
            got.add("over", source - sum(away_s) / epoch_s / count)
    what = f"{count} nodes, each killed once in {EPOCHS} epochs{options.scale(SMALL, SMALL_QUICK)}"
    return [
        got.row(f"{what}: files with a wrong byte", "wrong", at_most(0), ""),
        got.row("  failed reads", "failed", at_most(0), ""),
        got.row(
            "  source bytes of all epochs / data, less share x downtime / epoch of each", "over", at_most(1 + SPARE)
        ),
        got.row("  source bytes of all epochs / data", "source"),
        got.row("  served again after, the longest", "again", at_most(5), "s"),
        got.row("  an epoch", "epoch", unit="s"),
    ]
