"""The picture of `hfs status --plot`: throughput by origin over time, what is local, how long readers waited.

Three axes, one below the other, over the minutes before now.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hfs.cli.pictures import new_figure, save
from hfs.mountd.core.errors import HfsError


class NoPlot(HfsError):
    """The picture cannot be drawn."""


def draw(looks: Sequence[Mapping[str, float]], title: str, path: str) -> None:
    """Write the picture to `path`, which was checked. Raises NoPlot, ConfigError."""
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
