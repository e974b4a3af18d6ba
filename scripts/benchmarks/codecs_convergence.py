"""Rows of convergence: small networks, trained on raw float32 and on decoded float16, end with the same loss.

What differs between two trainings of one seed is the data alone: weights and the order of samples are the same.
"""

import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from hfs.codecs import decode, encode
from scripts.benchmarks import codecs_data
from scripts.benchmarks.codecs_data import Universe
from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

SEEDS = 5
VOLUMES, SIDE = 32, 32
MAPS, MAP_SHAPE = 12, (16, 96, 144)
BATCH = 4
STEPS, STEPS_QUICK = 80, 30
LAST = 16
"""Steps whose mean loss is the final one."""

Sample = tuple[torch.Tensor, torch.Tensor]


def convergence(work: Work, options: Options, command: str) -> list[Row]:  # noqa: ARG001 - as all groups
    got = Results(command)
    steps = options.size(STEPS, STEPS_QUICK)
    for name, (raw, encoded), network, loss in (
        ("volumes", volumes(), universe_network, nn.functional.mse_loss),
        ("maps", maps(), map_network, nn.functional.cross_entropy),
    ):
        ends = {
            kind: [train(samples, network, loss, seed, steps) for seed in range(SEEDS)]
            for kind, samples in (("raw", raw), ("encoded", encoded))
        }
        deviation = statistics.stdev(ends["raw"])
        got.add(f"{name} apart", abs(statistics.mean(ends["raw"]) - statistics.mean(ends["encoded"])) / deviation)
        for kind, values in ends.items():
            got.add(f"{name} {kind}", statistics.mean(values))
        got.add(f"{name} deviation", deviation)
    rows = []
    for name, words in (
        ("volumes", f"a 3-D network on {VOLUMES} CosmoFlow-like volumes of {SIDE}^3"),
        ("maps", f"a segmentation network on {MAPS} DeepCAM-like maps of {' x '.join(map(str, MAP_SHAPE))}"),
    ):
        what = f"{words}, {steps} steps, {SEEDS} seeds"
        rows += [
            got.row(f"{what}: mean final losses apart / standard deviation", f"{name} apart", at_most(1)),
            got.row("  raw float32", f"{name} raw", unit=""),
            got.row("  decoded float16", f"{name} encoded", unit=""),
            got.row("  standard deviation between the seeds, raw", f"{name} deviation", unit=""),
        ]
    return rows


def volumes() -> tuple[list[Sample], list[Sample]]:
    """The network is to tell how strongly the universe clusters, and the slope of its spectrum."""
    draw = np.random.default_rng(0)
    raw, encoded = [], []
    for number in range(VOLUMES):
        spread, slope = draw.uniform(-1, 1, 2)
        counts = codecs_data.volume(number, SIDE, Universe(1.5 + 0.5 * spread, -2 + 0.8 * slope))
        target = torch.tensor([spread, slope], dtype=torch.float32)
        values = torch.from_numpy(np.moveaxis(np.log1p(counts), -1, 0).copy())
        raw.append((values, target))
        encoded.append((decode(encode(counts), device="cpu", op="log1p", channels="first"), target))
    return raw, encoded


def maps() -> tuple[list[Sample], list[Sample]]:
    """The network is to find vortices and fronts."""
    scale = np.array([1 / size for _, size in codecs_data.UNITS], np.float32)
    shift = np.array([middle for middle, _ in codecs_data.UNITS], np.float32)
    raw, encoded = [], []
    for number in range(MAPS):
        values, label = codecs_data.fields(number, MAP_SHAPE)
        target = torch.from_numpy(label.astype(np.int64))
        raw.append((torch.from_numpy((values - shift[:, None, None]) * scale[:, None, None]), target))
        encoded.append((decode(encode(values), device="cpu", scale=scale, shift=shift), target))
    return raw, encoded


def universe_network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(4, 8, 3, 2), nn.LeakyReLU(), nn.Conv3d(8, 16, 3, 2), nn.LeakyReLU()),
        *(nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(128, 32), nn.LeakyReLU(), nn.Linear(32, 2)),
    )


def map_network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.LeakyReLU()),
        nn.Conv2d(16, 3, 1),
    )


def train(
    samples: list[Sample],
    network: Callable[[], nn.Module],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    seed: int,
    steps: int,
) -> float:
    """The final loss. Computed in float32: what is tried is the data."""
    torch.set_num_threads(1)  # more threads than free cores wait for each other
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    order = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        batch = [samples[number] for number in order.choice(len(samples), BATCH, replace=False)]
        inputs = torch.stack([values for values, _ in batch]).to(torch.float32)
        error = loss(model(inputs), torch.stack([target for _, target in batch]))
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        losses.append(float(error.detach()))
    return statistics.mean(losses[-LAST:])
