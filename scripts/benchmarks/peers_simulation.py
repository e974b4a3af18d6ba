"""Rows without daemons: the share of a global batch that moves for balance, and planning an epoch of a large job."""

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.common import Work, reader, seconds
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

PAPER_PERCENT = {32: 6.9, 64: 4.8, 128: 3.4}
"""By samples of a learner in a batch: figure 6 of Yang and Cong."""
NODES = (8, 64, 256, 1024)
STEPS = 1280
"""20 epochs of 64 batches: the mean of so many is within a tenth of a point of that of all, for 8 nodes too."""

HALF_A_POINT = 0.5

SAMPLES, SAMPLES_QUICK = 1_280_000, 64_000
LEARNERS = 1024
LOCAL_BATCH = 32


def imbalance(nodes: int, local_batch: int, steps: int, seed: int, epoch_batches: int = 64) -> NDArray[np.float64]:
    """float64 [steps]: the share of each of some global batches that has to move, in 0..1.

    As the paper simulates it: a data set of `epoch_batches` global batches, divided evenly between `nodes` caches, is
    drawn without replacement; what counts is the sum of the deficits over the batch.
    """
    if nodes < 1 or local_batch < 1:
        raise ValueError(f"{nodes} nodes with batches of {local_batch}")
    batch = nodes * local_batch
    rng = np.random.default_rng(seed)
    moved: list[float] = []
    while len(moved) < steps:
        owners = rng.permutation(np.repeat(np.arange(nodes, dtype=np.int32), local_batch * epoch_batches))
        for start in range(0, len(owners), batch):
            have = np.bincount(owners[start : start + batch], minlength=nodes)
            moved.append(float(np.maximum(local_batch - have, 0).sum()) / batch)
    return np.array(moved[:steps])


def simulated_percent(nodes: int, local_batch: int, steps: int, seed: int) -> float:
    """The mean share of a batch that moves."""
    return 100 * float(np.mean(imbalance(nodes, local_batch, steps, seed)))


def simulation(_work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    rows = []
    for nodes in NODES:
        # The mean over many nodes varies less, and takes longer.
        steps = max(64, STEPS * NODES[0] // nodes)
        for local_batch, paper in PAPER_PERCENT.items():
            key = f"{nodes} {local_batch}"
            for seed in range(options.runs):
                found = simulated_percent(nodes, local_batch, steps, seed)
                got.add(key, found)
                got.add(f"{key} off", abs(found - paper))
            what = f"simulated, {nodes} nodes, local batch {local_batch}: moved for balance"
            rows.append(got.row(f"{what}, off the paper's {paper} %", f"{key} off", at_most(HALF_A_POINT), "points"))
            rows.append(got.row("  moved", key, unit="%"))
    return rows


def planning(_work: Work, options: Options, command: str) -> list[Row]:
    """One rank of many makes its sampler and draws its epoch."""
    samples = options.size(SAMPLES, SAMPLES_QUICK)
    got = Results(command)
    for seed in range(options.runs):
        with got.attempt("s", "MB"), reader("node_plan.py", samples, LEARNERS, LOCAL_BATCH, seed) as program:
            answer = program.do()
            got.add("s", seconds(answer))
            got.add("MB", answer["peak_bytes"] / 1e6)
    what = (
        f"planning one epoch: {samples} files, {LEARNERS} learners on as many nodes, owners and all{{}}"
        f"{options.scale(SAMPLES, SAMPLES_QUICK)}"
    )
    return [
        got.row(what.format(", a rank"), "s", at_most(5), "s"),
        got.row(what.format(": memory of the rank, its list of files included"), "MB", at_most(500), "MB"),
    ]
