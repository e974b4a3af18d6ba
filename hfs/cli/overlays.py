"""Overlays as commands tell of them: root's `hfs mount` has one laid over its mount, and what is in force is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hfs.cli.shared import complain
from hfs.mountd.core.errors import HfsError
from hfs.mountd.supervisor.table import overlay_lies_at

_MISSING = "none: they need --immutable, a cache on disk, and a source of which nothing is asked as the user who reads"


def settle(mountpoint: str, wanted: str) -> None:
    """After a mount was made here: as root, with --io-mode overlay, have its keeper cover it; a plain user is told what
    else there is. A line where something is missing."""
    from hfs.mounting import keeper, overlay_probe
    from hfs.mounting.own_overlay import offered

    told = offered(mountpoint, is_made=wanted == "overlay" and not os.geteuid())
    if os.geteuid():
        if told and not overlay_probe.why_none():
            complain(f"{mountpoint}: in hfs run -- bash, with the same options, the kernel itself reads what is staged")
        return
    kept = keeper.find(mountpoint)
    if kept is None or (wanted != "overlay" and not (kept.status.get("overlay") or {}).get("is_there")):
        return
    why = "the daemon offers none"
    try:
        if not (why := kept.make_overlay(told if wanted == "overlay" else None)) or wanted != "overlay":
            return
    except (OSError, HfsError) as error:
        why = str(error)
    complain(f"{mountpoint}: no overlay, all is read through the daemon: {why}")


def line(status: Mapping[str, Any]) -> str:
    """Whether one is in force where this mount is seen; else what is missing."""
    if is_in_force(status):
        return "in force: the kernel itself reads what is staged"
    io_mode = status.get("io_mode") or {}
    if not io_mode.get("overlays"):
        return str(io_mode.get("overlay") or _MISSING)
    root = "" if os.geteuid() else "; hfs mount with --io-mode overlay does for all"
    return f"offered: hfs run lays one over what its command sees{root}"


def is_in_force(status: Mapping[str, Any]) -> bool:
    """Here, where we see the mount."""
    return bool(status.get("mountpoint")) and overlay_lies_at(str(status["mountpoint"]))
