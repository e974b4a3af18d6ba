"""`hfs plan --imbalance`: the share of a global batch that has to move, simulated (Yang and Cong, figure 6)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from hfs.cli.plan_tables import show_imbalance
from hfs.mountd.base.errors import ConfigError
from hfs.policies.cluster.cost_model import expected_imbalance, imbalance

_STEP_SAMPLES = (32, 64, 128)
"""The paper's."""
_MOST_SAMPLES = 1 << 26
"""Nodes x samples of a step x the 64 batches of the simulated epoch: 700 MB."""
_EPOCH_BATCHES = 64


def simulate(nodes: Sequence[int], step_samples: int | None, steps: int, *, as_json: bool, plot: str | None) -> None:
    """Print, and draw, `steps` batches of each kind. Raises ConfigError where that is more than fits in memory."""
    rows: list[dict[str, Any]] = []
    for samples in _STEP_SAMPLES if step_samples is None else (step_samples,):
        for count in nodes:
            if count == 1:
                continue  # has all of it
            if count * samples * _EPOCH_BATCHES > _MOST_SAMPLES:
                estimate = expected_imbalance(count, samples)
                raise ConfigError(
                    f"{count} nodes with {samples} samples a step are too many to simulate;"
                    f" the estimate is {estimate:.2%}"
                )
            shares = imbalance(count, samples, steps, seed=0, epoch_batches=_EPOCH_BATCHES)
            low, median, high = np.quantile(shares, (0.25, 0.5, 0.75)).tolist()
            estimate = expected_imbalance(count, samples)
            row = {"step_samples": samples, "nodes": count, "median": median, "quartile_1": low, "quartile_3": high}
            rows.append({**row, "estimate": estimate, "shares": shares.tolist()})
    if not rows:
        raise ConfigError("--imbalance needs 2 nodes or more: one node has all of each batch")
    if as_json:
        click.echo(json.dumps({"steps": steps, "imbalance": rows}))
    else:
        show_imbalance(rows)
    if plot is not None:
        from hfs.cli.plan_plot import draw_imbalance

        draw_imbalance(rows, plot)
