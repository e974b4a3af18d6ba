"""What `hfs run` says at its end: where the time went, and what was read from where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def summarize(seconds: Mapping[str, float], status: Mapping[str, Any] | None, *, is_joined: bool = False) -> None:
    """Lines on stderr. `seconds`: how long each part took; `status`: that of `hfs status --json`, or what `since`
    makes of it where the mount is others' too."""
    from hfs.cli.figures import duration
    from hfs.cli.learners import epochs_table
    from hfs.cli.render import stderr
    from hfs.cli.status_screen import run_lines

    console = stderr()
    lines = [", ".join(f"{name} {duration(value)}" for name, value in seconds.items())]
    lines += run_lines(status, is_joined=is_joined) if status is not None else []
    for line in lines:
        console.print(f"hfs: {line}", markup=False, highlight=False, soft_wrap=True)
    epochs = epochs_table((status or {}).get("hints") or {})
    if epochs is not None:
        console.print(epochs)


def since(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A status with what has changed since another one; None: it is not known, or another daemon serves the mount.

    Learners are those that have come meanwhile.
    """
    if before is None or now is None or before.get("pid") != now.get("pid"):
        return None
    known = {learner.get("pid") for name in ("learners", "past") for learner in _learners(before, name)}
    came = {
        name: [learner for learner in _learners(now, name) if learner.get("pid") not in known]
        for name in ("learners", "past")
    }
    traffic, staged = _changed(before, now, "traffic"), _changed(before, now, "staged", ("files", "bytes"))
    faults = {name: _changed(before, now, name) for name in ("faults", "background_faults")}
    source = _changed(before, now, "source", ("errors",))
    return {**now, **faults, "traffic": traffic, "staged": staged, "source": source, "hints": came}


def _learners(status: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return (status.get("hints") or {}).get(name) or []


def _changed(
    before: Mapping[str, Any], now: Mapping[str, Any], part: str, names: Collection[str] | None = None
) -> dict[str, Any]:
    """What this part has now, its numbers (or those of these names) less what they were."""
    earlier, later = before.get(part) or {}, now.get(part) or {}
    return {
        name: value - (earlier.get(name) or 0) if type(value) in {int, float} and name in (names or later) else value
        for name, value in later.items()
    }
