"""The cost model at 16 to 1 024 nodes against the speed-ups that Yang and Cong measured on up to 256. A simulation.

Loading alone, as in their figures 8 to 11: an epoch of the regular loader over one of the locality-aware loader. The
share of a batch that moves comes from the policies themselves (owners by rendezvous hashing, Algorithm 1). What the
paper says: the data sets, 4 learners a node with batches of 128, at most 800 samples/s a learner (ImageNet), 100 Gbit/s
a node. What it does not say, and is assumed here:

- The storage gives STORAGE_RATE files a second, whatever their size. In their figure 1 training waits for data from 16
  nodes on; four V100 train ResNet50 with about 1 500 images a second, so R = 16 V (their equation 5).
- Half of the nodes' links together carry what moves.
- UCF101: what a node prepares; taken from the speed-up at 256 nodes, so that point is no prediction.
- MuMMI is not prepared; what a node reads from its memory is taken from the speed-up at 16 nodes.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from hfs.policies.cluster.cost_model import Job, costs
from hfs.policies.cluster.locality import node_epoch
from hfs.policies.cluster.placement import Nodes, keys, owners
from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

STORAGE_RATE = 16 * 1500.0
LINK_BYTES = 12.5e9
A_NODE, BATCH = 4, 128
"""Learners of a node, and samples of each in a step."""
SCALES = (16, 32, 64, 128, 256, 512, 1024)
SCALES_QUICK = (16, 64, 256)


@dataclass(frozen=True)
class Paper:
    """One data set of the paper, and what it measured."""

    name: str
    samples: int
    sample_bytes: int
    limit: Literal["preprocess_rate", "local_rate"]
    """What a node cannot do faster than `rate`, in samples a second."""
    rate: float
    speed_ups: dict[int, float]
    taken_from: int | None
    """The number of nodes whose speed-up `rate` was taken from; None: it is the paper's."""


PAPER = (
    Paper("ImageNet", 1_281_167, 117_000, "preprocess_rate", A_NODE * 800.0, {256: 34}, None),
    Paper("UCF101-RGB", 2_500_000, 24_200, "preprocess_rate", 5_110.0, {256: 55.5}, 256),
    Paper("UCF101-FLOW", 5_000_000, 4_600, "preprocess_rate", 5_590.0, {256: 60.6}, 256),
    Paper("MuMMI", 7_000_000, 131_000, "local_rate", 27_000.0, {16: 18, 32: 35, 64: 70, 128: 120}, 16),
)


@cache
def moved(nodes: int, seed: int) -> float:
    """The share of two global batches that moves, with the owners of samples as the directory computes them."""
    batch = nodes * A_NODE * BATCH
    table = Nodes(tuple(range(1, nodes + 1)), (1.0,) * nodes).table()
    paths = np.random.default_rng(seed).integers(0, 1 << 63, 2 * batch).astype(np.uint64)
    found = owners(table, keys(paths, np.zeros(len(paths), np.int64)))
    return float(node_epoch(found, batch, [A_NODE] * nodes, 0)[1].sum()) / len(paths)


def speed_up(of: Paper, nodes: int, seed: int) -> float:
    """Of an epoch of loading alone."""
    job = Job(
        samples=of.samples,
        train_rate=float("inf"),
        preprocess_rate=of.rate if of.limit == "preprocess_rate" else float("inf"),
        local_rate=of.rate if of.limit == "local_rate" else float("inf"),
        storage_rate=STORAGE_RATE,
        remote_rate=nodes * LINK_BYTES / 2 / of.sample_bytes,
        moved=moved(nodes, seed),
    )
    found = costs(job, nodes)
    return found.direct_s / found.locality_s


def scale(_: Work, options: Options, command: str) -> list[Row]:
    """Rows and a plot."""
    scales = SCALES_QUICK if options.quick else SCALES
    got = Results(command)
    for seed in range(options.runs):
        for nodes in scales:
            got.add(f"moved {nodes}", 100 * moved(nodes, seed))
            for of in PAPER:
                got.add(f"{of.name} {nodes}", speed_up(of, nodes, seed))
    for nodes in scales:
        for of in PAPER:
            if nodes in of.speed_ups:
                got.add(f"{of.name} {nodes} paper", got.last(f"{of.name} {nodes}") / of.speed_ups[nodes])
    rows = []
    for of in PAPER:
        what = {"preprocess_rate": "prepares", "local_rate": "reads from its memory"}[of.limit]
        origin = (
            "as in the paper" if of.taken_from is None else f"taken from the paper's point at {of.taken_from} nodes"
        )
        title = f"{of.name}, a node {what} {of.rate:,.0f} samples/s ({origin}), storage {STORAGE_RATE:,.0f} (assumed)"
        for nodes in scales:
            name = f"  {nodes} nodes: locality-aware, speed-up of loading"
            rows.append(got.row(f"{title}: {name.strip()}" if nodes == scales[0] else name, f"{of.name} {nodes}"))
            if nodes in of.speed_ups:
                rows.append(
                    got.row(f"    over the paper's, which is {of.speed_ups[nodes]:g}x", f"{of.name} {nodes} paper")
                )
    rows += [got.row(f"share of a batch that moves, {nodes} nodes", f"moved {nodes}", unit="%") for nodes in scales]
    lines = [[got.last(f"{of.name} {nodes}") for nodes in scales] for of in PAPER]
    draw(options.plots / "loading-scale.png", lines, scales)
    return rows


def draw(path: Path, lines: list[list[float]], scales: tuple[int, ...]) -> None:
    """A line for each of PAPER by the model, and the paper's points, hollow where the model has an input from one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for number, (of, values) in enumerate(zip(PAPER, lines, strict=True)):
        colour = f"C{number}"
        axis.plot(scales, values, color=colour, label=f"{of.name}: model")
        for nodes, measured in of.speed_ups.items():
            face = "none" if nodes == of.taken_from else colour
            axis.plot(nodes, measured, "o", color=colour, markerfacecolor=face, markersize=8)
    axis.plot([], [], "o", color="black", label="measured (Yang and Cong)")
    axis.plot([], [], "o", color="black", markerfacecolor="none", label="measured, and taken as an input")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(scales, [str(nodes) for nodes in scales])
    ticks = [2**power for power in range(2, 11)]
    axis.set_yticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel("nodes, 4 learners each")
    axis.set_ylabel("speed-up of loading over the regular loader")
    axis.set_title(
        f"assumed: storage gives {STORAGE_RATE:,.0f} files/s, half of all links carry what moves", fontsize=9
    )
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
