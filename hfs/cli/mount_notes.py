"""What a command that mounts says of the mount that it has made or joined: that there is no cache, where the metrics
are that were asked for, whether overlays are in force, how files are read. Nothing of that keeps a mount from being
made, and this is the moment in which somebody can be told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hfs.cli.shared import complain, target_of
from hfs.cli.situation import is_covered
from hfs.mountd.core.config import Config
from hfs.mountd.core.config.key import address_of
from hfs.mountd.core.errors import HfsError

_NO_OVERLAYS = (
    "none: they need --immutable, a cache on disk, and a source of which nothing is asked as the user who reads"
)


def tell_what_is_missing(config: Config, mountpoint: str) -> None:
    """Say it on stderr. `mountpoint`: of the mount that was made, or joined."""
    try:
        status = target_of(mountpoint).client.status()
    except HfsError as error:  # mounted it is all the same
        if config.metrics is not None or config.metrics_file is not None:
            complain(f"metrics: not known whether there are any: {error}")
        return
    for line in notes(config, status):
        complain(line)


def notes(config: Config, status: Mapping[str, Any]) -> Iterator[str]:
    """The lines."""
    told, made, staged = (status.get(part) or {} for part in ("monitoring", "config", "staged"))
    if staged.get("state") == "off":
        yield f"{staged.get('last_error') or 'there is no cache'}; all is read from the source until it is well"
    for key, wanted, error in (
        ("metrics", config.metrics, told.get("error")),
        ("metrics-file", config.metrics_file, told.get("file_error")),
    ):
        has = (made.get(key) or {}).get("value")
        if wanted is None:
            continue
        if has != wanted:
            yield f"{key}: the mount that is there has {has or 'none'}, and keeps that; {wanted} is not used"
        elif error is not None:
            yield f"metrics: {error}"
        elif key == "metrics":
            yield from _where(wanted, str(told.get("address")))


def _where(wanted: str, found: str) -> Iterator[str]:
    address = address_of(wanted)
    if address.port == 0:
        yield f"metrics are at http://{found}/metrics"
    if not address.is_loopback:
        yield f"metrics: whoever reaches {found} over the network can read them, and the paths of SOURCE and MOUNTPOINT"


def settle_overlay(mountpoint: str, wanted: str) -> None:
    """After a mount was made here: as root, with --io-mode overlay, have its keeper cover it; a plain user is told what
    else there is. A line where something is missing."""
    from hfs.mounting import keeper, view
    from hfs.mounting.using import offered

    told = offered(mountpoint, is_made=wanted == "overlay" and not os.geteuid())
    if os.geteuid():
        if told and not view.why_no_overlays():
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


def overlay_line(status: Mapping[str, Any]) -> str:
    """Whether one is in force where this mount is seen; else what is missing."""
    if is_covered(status):
        return "in force: the kernel itself reads what is staged"
    io_mode = status.get("io_mode") or {}
    if not io_mode.get("overlays"):
        return str(io_mode.get("overlay") or _NO_OVERLAYS)
    root = "" if os.geteuid() else "; hfs mount with --io-mode overlay does for all"
    return f"offered: hfs run lays one over what its command sees{root}"


def parts(status: Mapping[str, Any]) -> list[str]:
    """A line for each part that makes reads fast: what holds in this mount, or why it does not."""
    io_mode, kernel = status.get("io_mode") or {}, status.get("kernel") or {}
    lines = [f"io mode: {io_mode.get('mode')} ({io_mode.get('reason')})"]
    lines += [f"{name}: {io_mode.get(name)}" for name in ("passthrough", "stateless", "extension")]
    lines.append(f"overlays: {overlay_line(status)}")
    for name, figure, unit in (("readahead", "read_ahead_kb", " KiB"), ("background requests", "max_background", "")):
        value = kernel.get(figure)
        lines.append(f"{name}: {value}{unit}" if value is not None else f"{name}: as the kernel has it")
    return lines + list(kernel.get("notes") or [])


def settled(mountpoint: str, io_mode: str, verbose: str) -> None:
    """A mount in the foreground answers."""
    settle_overlay(mountpoint, io_mode)
    if verbose:
        tell_parts(mountpoint)


def tell_parts(mountpoint: str) -> None:
    """Say on stderr how files are read in this mount."""
    try:
        status = target_of(mountpoint).client.status()
    except HfsError as error:  # mounted it is all the same
        complain(f"no figures: {error}")
        return
    complain(*parts(status))


def mention_working_directory(mountpoint: str) -> None:
    """A shell that stands in MOUNTPOINT stands in the directory below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return
    if here == mountpoint or here.startswith(mountpoint.rstrip("/") + "/"):
        complain(f'your shell still stands in the directory below the mount; go in: cd "{here}"')
