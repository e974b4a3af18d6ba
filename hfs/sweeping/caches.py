"""Caches that no daemon uses, and that nobody has used for longer than the key `expire` says.

A daemon lets go what is too old by itself; a cache whose source is mounted no more has none. What is pinned stays. A
cache is its user's: a process becomes that user before it opens anything of it. Its user may stop it, or have a file
system there that does not answer, so nobody waits for it for long; what it has emptied stays so.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from hfs.mountd.ledger import CacheRoot, Listed, has_ledger
from hfs.mounting import own_process, probe
from hfs.sweeping import Swept, TimeForOthers


def sweep(root_path: str, expire_s: float, *, dry_run: bool, others: TimeForOthers) -> Iterator[Swept]:
    """Of this root. Raises ConfigError, OSError where it cannot be opened."""
    if not has_ledger(root_path):
        return
    root = CacheRoot(root_path)
    try:
        entries = [entry for entry in root.ledger.listed() if _is_expired(entry, expire_s)]
    finally:
        root.close()
    own = os.geteuid()
    by_user: dict[int, list[Listed]] = {}
    for entry in entries:
        by_user.setdefault(int(entry.name.partition("-")[0]), []).append(entry)
    for uid in others.each(by_user if own == 0 else {own} & by_user.keys()):
        kept = "" if dry_run else _evicted(root_path, expire_s, uid, others.left_s(uid))
        for entry in by_user[uid]:
            source = os.fsdecode(entry.serving.source) if entry.serving is not None else "a source"
            days = (time.time() - entry.grant.used_s) / 86400
            text = f"cache of {source}, not used for {days:.1f} days"
            yield Swept("cache", f"{root_path.rstrip('/')}/{entry.name}", text, kept, uid != own)


def _is_expired(entry: Listed, expire_s: float) -> bool:
    old = entry.grant.used_s < time.time() - expire_s
    return old and not entry.running and entry.grant.used_bytes > entry.claims.pinned_bytes


def _evicted(root_path: str, expire_s: float, uid: int, limit_s: float) -> str:
    """Of one user; what went wrong."""
    if uid == os.geteuid():
        from hfs.mounting import offline

        return offline.evict_old(root_path, expire_s)
    gid = os.lstat(f"{root_path}/ledger").st_gid
    child = subprocess.Popen(
        own_process.command("hfs.mounting.offline", root_path, str(expire_s), str(uid), str(gid)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        said, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        probe.leave_behind(child)
        return f"its user's process does not end within {limit_s:.0f} s; the next sweep goes on"
    return said.decode(errors="backslashreplace") if child.returncode == 0 else "it ended early"
