"""The pictures of `hfs plan`: epochs by nodes, and what moves between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hfs.cli.pictures import new_figure, save
from hfs.cli.plan_tables import TITLES
from hfs.policies.cluster.cost_model import WAYS

COLOURS = {"direct": "#c0392b", "node_cache": "#e08e0b", "distributed": "#2e86c1", "locality": "#1e8449"}


def draw_epochs(found: Mapping[str, Any], file: str) -> None:
    """Seconds of an epoch over the number of nodes, both logarithmic; the paper's figure 1, for each way of loading."""
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    nodes = [row["nodes"] for row in found["epochs"]]
    # Ways that take the same time lie on each other: the later ones are narrower, so that all are seen.
    for width, way in zip((8, 6, 4, 2), WAYS, strict=True):
        seconds = [row[f"{way}_s"] for row in found["epochs"]]
        axis.plot(
            nodes, seconds, color=COLOURS[way], linewidth=width, marker="o", markersize=width + 2, label=TITLES[way]
        )
    training = [row["train_s"] for row in found["epochs"]]
    axis.plot(nodes, training, color="black", linestyle=":", linewidth=1.5, label="training alone")
    _nodes_axis(axis, nodes)
    axis.set_yscale("log")
    axis.set_ylabel("seconds of an epoch")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    save(figure, file)


def draw_imbalance(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """Boxes of the share of a batch that moves, for each number of nodes; the paper's figure 6."""
    figure = new_figure(8, 4.5)
    axis = figure.subplots()
    kinds = sorted({row["step_samples"] for row in rows})
    nodes = sorted({row["nodes"] for row in rows})
    for number, kind in enumerate(kinds):
        colour = list(COLOURS.values())[number % len(COLOURS)]
        chosen = [row for row in rows if row["step_samples"] == kind]
        places = [nodes.index(row["nodes"]) + 0.25 * (number - (len(kinds) - 1) / 2) for row in chosen]
        boxes = axis.boxplot(
            [[100 * share for share in row["shares"]] for row in chosen],
            positions=places,
            widths=0.2,
            patch_artist=True,
            showfliers=False,
            medianprops={"color": "black"},
        )
        for box in boxes["boxes"]:
            box.set_facecolor(colour)
        axis.plot([], [], color=colour, linewidth=6, label=f"{kind} samples of a node")
    axis.set_xticks(range(len(nodes)), [str(count) for count in nodes])
    axis.set_xlabel("nodes")
    axis.set_ylabel("% of a global batch that moves")
    axis.set_ylim(bottom=0)
    axis.legend()
    save(figure, file)


def _nodes_axis(axis: Any, nodes: Sequence[int]) -> None:  # noqa: ANN401 - matplotlib may be missing
    axis.set_xscale("log", base=2)
    axis.set_xticks(nodes, [str(count) for count in nodes])
    axis.minorticks_off()
    axis.set_xlabel("nodes")
