"""What commands that draw share: the file that is asked for, the figure, how it is kept. By matplotlib, an extra."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from hfs.mountd.core.errors import ConfigError


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
