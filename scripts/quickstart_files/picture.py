"""The picture of the quickstart: how long each epoch took, directly and through hfs, one panel for each source."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(seconds: Mapping[tuple[str, str], Sequence[float]], path: Path) -> None:
    """seconds: of each epoch, by (source, way). The ending of `path` says the format. Raises ImportError without
    matplotlib, OSError and ValueError."""
    from matplotlib.figure import Figure

    sources = list(dict.fromkeys(source for source, _ in seconds))
    ways = list(dict.fromkeys(way for _, way in seconds))
    figure = Figure(figsize=(4.5 * len(sources), 3.8), layout="constrained")
    panels = figure.subplots(1, len(sources), squeeze=False)[0]
    width = 0.8 / len(ways)
    for panel, source in zip(panels, sources, strict=True):
        for number, way in enumerate(ways):
            epochs = seconds[source, way]
            bars = panel.bar([epoch + number * width for epoch in range(len(epochs))], epochs, width, label=way)
            panel.bar_label(bars, fmt="%.1f", padding=2)
        panel.set_title(source)
        panel.set_xticks(
            [epoch + width * (len(ways) - 1) / 2 for epoch in range(len(epochs))],
            [f"epoch {epoch + 1}" for epoch in range(len(epochs))],
        )
        panel.set_ylim(0, 1.1 * max(max(seconds[source, way]) for way in ways))  # room for the labels
    panels[0].set_ylabel("seconds")
    # Outside the panels, where no bar and no label is.
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ways))
    figure.savefig(path)
