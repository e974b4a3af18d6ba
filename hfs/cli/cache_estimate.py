"""`hfs cache warm --dry-run`: what would be read, whether it fits, and how long it takes, for each mount of PATHs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from hfs.cli.exit_codes import DONE, PARTLY
from hfs.cli.shared import MountTarget, complain
from hfs.mountd.core.printable import printable
from hfs.mountd.wire.protocol import Progress, Rows


def wanted(missing_bytes: int, room_bytes: int, free_bytes: int) -> str:
    """What a warm needs, and whether that fits."""
    from hfs.cli.figures import size

    if not missing_bytes:
        return "nothing to read"
    if room_bytes <= free_bytes:
        return f"needs {size(missing_bytes)}, all of it fits"
    return f"needs {size(room_bytes)}, {size(free_bytes)} fit: stops at {free_bytes / room_bytes:.0%}"


def tell_estimates(targets: Sequence[MountTarget], *, as_json: bool) -> int:
    """A line or a JSON object for each. The exit code: PARTLY where it would not all fit, or a path failed."""
    code = DONE
    for target in targets:

        def news(part: Progress | Rows, target: MountTarget = target) -> None:
            for fault in part.faults if isinstance(part, Progress) else []:
                complain(f"{target.shown(fault.path)}: {fault.message}")

        result = target.client.estimate(target.paths, news)
        for fault in result.faults:
            complain(f"{target.shown(fault.path)}: {fault.message}")
        missing_bytes, room_bytes, free_bytes = (
            int(result.detail[name]) for name in ("missing_bytes", "room_bytes", "free_bytes")
        )
        if result.failed or room_bytes > free_bytes:
            code = PARTLY
        if as_json:
            figures = {"files": result.files, "bytes": result.bytes, "staged": result.skipped, "failed": result.failed}
            click.echo(json.dumps({"mountpoint": target.mountpoint, **figures, **result.detail}))
            continue
        from hfs.cli.figures import count, duration, size

        files = f"{count(result.files, 'file')} of {size(result.bytes)}"
        text = f"{target.mountpoint}: {files}, {result.skipped:,} of them staged; "
        text += wanted(missing_bytes, room_bytes, free_bytes)
        seconds = result.detail.get("seconds")
        if missing_bytes and seconds is not None:
            text += f", about {duration(_rounded(float(seconds)))}"
        click.echo(printable(text))
    return code


def _rounded(seconds: float) -> float:
    """It is no better known."""
    if seconds < 60:
        return float(f"{seconds:.2g}")
    return round(seconds / 10) * 10 if seconds < 600 else round(seconds, -2)
