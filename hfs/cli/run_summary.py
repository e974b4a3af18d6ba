"""What `hfs run` says at its end: where the time went, and what was read from where."""

from __future__ import annotations

from typing import Any


def summarize(seconds: dict[str, float], status: dict[str, Any] | None) -> None:
    """Lines on stderr. `seconds`: how long each part took; `status`: the object of `hfs status --json`."""
    from hfs.cli.figures import duration
    from hfs.cli.learners import epochs_table
    from hfs.cli.render import stderr
    from hfs.cli.status_screen import run_lines

    console = stderr()
    lines = [", ".join(f"{name} {duration(value)}" for name, value in seconds.items())]
    lines += run_lines(status) if status is not None else []
    for line in lines:
        console.print(f"hfs: {line}", markup=False, highlight=False, soft_wrap=True)
    epochs = epochs_table((status or {}).get("hints") or {})
    if epochs is not None:
        console.print(epochs)
