"""The plot of the buffer-size study: computing and exposed I/O of an epoch over the size of the buffer, in bars.

As figures 9 and 10 of the paper: one chart beside the other, the vertical axis logarithmic. Needs matplotlib.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMPUTE_COLOUR, EXPOSED_COLOUR = "#9aa5b1", "#c0392b"


@dataclass(frozen=True)
class Bars:
    """One chart."""

    name: str
    sizes: Sequence[int]
    """Samples of a buffer."""
    exposed_s: Sequence[float | None]
    """For each size; None where it could not be measured."""
    compute_s: float


def write_plot(path: Path, title: str, charts: Sequence[Bars]) -> None:
    """One picture of all charts; what is no figure has no bar. Its folder is made."""
    # The only user of matplotlib: all other rows are measured without it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(charts), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(charts), sharey=True, squeeze=False)[0]
    for chart, axis in zip(charts, axes, strict=True):
        places = range(len(chart.sizes))
        exposed = [value or 0.0 for value in chart.exposed_s]
        # Beside each other, not one on the other: heights on a logarithmic axis cannot be added.
        axis.bar([place - 0.2 for place in places], chart.compute_s, 0.4, color=COMPUTE_COLOUR, label="compute")
        axis.bar([place + 0.2 for place in places], exposed, 0.4, color=EXPOSED_COLOUR, label="exposed I/O")
        axis.set_yscale("log")
        axis.set_xticks(list(places), [str(size) for size in chart.sizes])
        axis.set_xlabel("samples of a buffer")
        axis.set_title(chart.name)
    axes[0].set_ylabel("seconds of an epoch")
    # Outside the charts, where there is no bar.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
