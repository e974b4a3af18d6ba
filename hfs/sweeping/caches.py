"""Caches that no daemon uses, and that nobody has used for longer than the key `expire` says.

A daemon lets go what is too old by itself; a cache whose source is mounted no more has none. What is pinned stays. A
cache is its user's: root becomes that user, in a child, before anything of it is opened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

from hfs.mountd.base.errors import HfsError
from hfs.mountd.ledger import CacheRoot, Listed
from hfs.sweeping.swept import Swept


def sweep(root_path: str, expire_s: float, *, dry_run: bool) -> Iterator[Swept]:
    """Of this root. Raises ConfigError, OSError where it cannot be opened."""
    if not os.path.isdir(f"{root_path}/ledger"):
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
    for uid, found in sorted(by_user.items()):
        if own not in {0, uid}:
            continue
        kept = "" if dry_run else _evicted(root_path, expire_s, uid)
        for entry in found:
            source = os.fsdecode(entry.serving.source) if entry.serving is not None else "a source"
            days = (time.time() - entry.grant.used_s) / 86400
            text = f"cache of {source}, not used for {days:.1f} days"
            yield Swept("cache", f"{root_path.rstrip('/')}/{entry.name}", text, kept)


def _is_expired(entry: Listed, expire_s: float) -> bool:
    old = entry.grant.used_s < time.time() - expire_s
    return old and not entry.running and entry.grant.used_bytes > entry.pinned_bytes


def _evicted(root_path: str, expire_s: float, uid: int) -> str:
    """Of one user; what went wrong."""
    if uid == os.geteuid():
        return _evict(root_path, expire_s)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it ended early"
        try:
            gid = os.lstat(f"{root_path}/ledger").st_gid
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            said = _evict(root_path, expire_s)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent says it
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, json.dumps(said).encode()[:4096])
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return str(json.loads(data)) if data else "it ended early"


def _evict(root_path: str, expire_s: float) -> str:
    from hfs.mounting import offline

    try:
        offline.evict(root_path, (), expire_s, None)
    except (HfsError, OSError) as error:
        return str(error)
    return ""
