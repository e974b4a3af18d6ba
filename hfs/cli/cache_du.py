"""`hfs cache du`: what the caches below a root hold, of which source, whose, and when each was used last.

From the ledger, and from daemons of ours: no cache is opened, and caches of other users are seen too.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import click

from hfs.cli.command import Command
from hfs.cli.mount_options import load_config
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.printable import printable
from hfs.mountd.ledger import Listed
from hfs.mounting.cache_root import cache_root, held

_NO_OPTIONS = {"options": (), "config_file": None, "verbose": False}


def root_of(directory: str | None) -> str:
    """The root that --cache names, or the one of the configuration. Raises ConfigError."""
    path = directory or load_config(_NO_OPTIONS, required=False)[0].cache
    if not path:
        raise ConfigError("no cache: give --cache DIR, or set it in the configuration (hfs config)")
    if not os.path.isdir(path):
        raise ConfigError(f"--cache {path}: no such directory; give the DIR of hfs mount --cache DIR")
    return path


@click.command(cls=Command, examples=["hfs cache du --cache /nvme/hfs"])
@click.option("--cache", "directory", metavar="DIR", help="The cache root. Default: that of the configuration.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def du(directory: str | None, as_json: bool) -> None:
    """Show what each cache of a root holds: source, owner, bytes staged and pinned, share of the size, last use."""
    path = root_of(directory)
    with cache_root(path) as root:
        size_bytes, caches = root.ledger.size_bytes(), [_told(entry) for entry in root.ledger.listed()]
    used_bytes = sum(cache["used_bytes"] for cache in caches)
    if as_json:
        click.echo(json.dumps({"root": path, "size_bytes": size_bytes, "used_bytes": used_bytes, "caches": caches}))
        return
    from hfs.cli.figures import duration, size
    from hfs.cli.render import new_table, stdout

    table = new_table("", "source", "owner", "staged", "pinned", "share", "last used", "mounted at")
    for cache in sorted(caches, key=lambda cache: -cache["used_bytes"]):
        ago = "now" if cache["running"] else f"{duration(max(0.0, time.time() - cache['used_s']))} ago"
        sizes = (size(cache[name]) for name in ("used_bytes", "pinned_bytes", "granted_bytes"))
        table.add_row(printable(cache["source"]), cache["owner"], *sizes, ago, printable(cache["mountpoint"]))
    stdout().print(table)
    limit = "; without --cache-size the disk is the limit" if size_bytes is None else f" of {size(size_bytes)}"
    click.echo(f"{size(used_bytes)}{limit}")


def _told(entry: Listed) -> dict[str, Any]:
    serving, has = entry.serving, held(entry)
    return {
        "name": entry.name,
        "source": "?" if serving is None else os.fsdecode(serving.source),
        "owner": _user(entry.owner),
        "used_bytes": has.bytes,
        "pinned_bytes": has.pinned_bytes,
        "granted_bytes": entry.grant.granted_bytes,
        "used_s": entry.grant.used_s,
        "running": entry.running,
        "mountpoint": os.fsdecode(serving.mountpoint) if serving is not None and entry.running else "",
    }


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
