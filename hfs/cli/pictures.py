"""The pictures that commands draw: what epochs take on how many nodes and what moves between them (`hfs plan`), and the
traffic of a mount (`hfs status --plot`). By matplotlib, an extra; a file that cannot be kept is refused before anything
is asked or computed for it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.policies.cluster.cost_model import WAYS

TITLES = {
    "direct": "direct",
    "node_cache": "node cache",
    "distributed": "shared caches",
    "locality": "locality-aware",
}
"""Of the ways in which an epoch is loaded."""
_COLOURS = {"direct": "#c0392b", "node_cache": "#e08e0b", "distributed": "#2e86c1", "locality": "#1e8449"}


class NoPlot(HfsError):
    """The picture cannot be drawn."""


def check(file: str) -> None:
    """See that a picture can be drawn there, before anything is asked or computed for it. Raises ConfigError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib")
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise ConfigError(f"--plot {file}: {folder} is no directory")
    if os.path.splitext(file)[1] not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"--plot {file}: give a file that ends in .png, .svg or .pdf")


def new_figure(width: float, height: float) -> Any:  # noqa: ANN401 - matplotlib may be missing
    """A figure that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, file: str) -> None:  # noqa: ANN401 - matplotlib may be missing
    """Write it to a file that was checked. Raises ConfigError."""
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written ({error.strerror}); give another FILE") from None


def draw_epochs(found: Mapping[str, Any], file: str) -> None:
    """Seconds of an epoch over the number of nodes, both logarithmic; the paper's figure 1, for each way of loading."""
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    nodes = [row["nodes"] for row in found["epochs"]]
    # Ways that take the same time lie on each other: the later ones are narrower, so that all are seen.
    for width, way in zip((8, 6, 4, 2), WAYS, strict=True):
        seconds = [row[f"{way}_s"] for row in found["epochs"]]
        axis.plot(
            nodes, seconds, color=_COLOURS[way], linewidth=width, marker="o", markersize=width + 2, label=TITLES[way]
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
        colour = list(_COLOURS.values())[number % len(_COLOURS)]
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


def draw_traffic(looks: Sequence[Mapping[str, float]], title: str, path: str) -> None:
    """Throughput by origin over the minutes before now, what is local, how long readers waited: three axes, one below
    the other. Raises NoPlot, ConfigError."""
    if len(looks) < 2:
        raise NoPlot("there is nothing to draw yet: the daemon has just begun; try again in some seconds")
    minutes, rates = _rates(looks)
    figure = new_figure(9, 7)
    above, middle, below = figure.subplots(3, 1, sharex=True)
    source, peers = rates["source_bytes"], rates["peer_bytes"]
    local = [max(0.0, read - one - other) for read, one, other in zip(rates["read_bytes"], source, peers, strict=True)]
    shown = {"this node": (local, "C0"), "other nodes": (peers, "C2"), "the source": (source, "C1")}
    if not any(peers):  # of a mount by itself there are none
        del shown["other nodes"]
    above.stackplot(
        minutes,
        *(rate for rate, _ in shown.values()),
        labels=list(shown),
        colors=[colour for _, colour in shown.values()],
    )
    above.set_ylabel("MB/s")
    above.set_ylim(bottom=0)
    # Above the axes: there may be traffic anywhere in them.
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(shown), frameon=False)
    middle.plot([look["ago_s"] / 60 for look in looks], [look["staged_bytes"] / 1e9 for look in looks])
    middle.set_ylabel("GB local")
    middle.set_ylim(bottom=0)
    below.plot(minutes, [rate * 1e6 for rate in rates["source_wait_s"]])
    below.set_ylabel("readers that wait")
    below.set_ylim(bottom=0)
    below.set_xlabel("minutes ago")
    below.set_xlim(looks[0]["ago_s"] / 60, 0)  # of all three: the present is at the right
    figure.suptitle(title)
    save(figure, path)


def _rates(looks: Sequence[Mapping[str, float]]) -> tuple[list[float], dict[str, list[float]]]:
    """The middle of each time between two looks, in minutes ago; by name what came in it, in millionths a second."""
    minutes: list[float] = []
    rates: dict[str, list[Any]] = {name: [] for name in ("read_bytes", "source_bytes", "peer_bytes", "source_wait_s")}
    for before, after in itertools.pairwise(looks):
        seconds = before["ago_s"] - after["ago_s"]
        if seconds <= 0:
            continue
        minutes.append((before["ago_s"] + after["ago_s"]) / 120)
        for name, found in rates.items():
            found.append(max(0.0, after[name] - before[name]) / seconds / 1e6)
    return minutes, rates
