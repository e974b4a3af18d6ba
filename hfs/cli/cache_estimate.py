"""`hfs cache warm --dry-run`: what would be read, and whether it fits, for each mount that PATHs lie in."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from hfs.cli.exit_codes import DONE, PARTLY
from hfs.cli.shared import MountTarget, complain, printable
from mountd.wire.protocol import Progress, Rows


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
        from hfs.cli.figures import size

        text = (
            f"{target.mountpoint}: {result.files:,} files of {size(result.bytes)}, {result.skipped:,} of them staged; "
        )
        if not missing_bytes:
            text += "nothing to read"
        elif room_bytes <= free_bytes:
            text += f"needs {size(missing_bytes)}, all of it fits"
        else:
            text += f"needs {size(room_bytes)}, {size(free_bytes)} fit: stops at {free_bytes / room_bytes:.0%}"
        click.echo(printable(text))
    return code
